#include "engine/scheduler/fair_queue.h"

#include <algorithm>

#include "engine/base/check.h"

namespace lockstep {
namespace {

// The place of the tenant's first in line.
FairQueue::Place head(const FairQueue::Tenant& tenant) {
  FairQueue::Place place = *tenant.waiting.begin();
  if (place.start == FairQueue::kNoStart) place.start = tenant.tag;
  return place;
}

}  // namespace

std::optional<double> FairQueue::least_waiting_start() const {
  std::optional<double> least;
  for (const auto& [name, tenant] : tenants_) {
    if (tenant.waiting.empty()) continue;
    const double start = head(tenant).start;
    least = std::min(least.value_or(start), start);
  }
  return least;
}

FairQueue::Tenant& FairQueue::enter(const std::string& name, std::optional<double> floor) {
  if (const auto waiting = least_waiting_start()) {
    floor = std::min(floor.value_or(*waiting), *waiting);
  }
  Tenant& tenant = tenants_[name];
  // A tenant that did not wait has no credit.
  if (tenant.waiting.empty()) tenant.tag = std::max(tenant.tag, floor.value_or(latest_start_));
  ++tenant.open;
  ++open_count_;
  return tenant;
}

void FairQueue::leave(const std::string& name) {
  const auto found = tenants_.find(name);
  CHECK(found != tenants_.end() && found->second.open > 0, "tenant {} has nothing here", name);
  --open_count_;
  // A tag ahead of the others is a debt, and stays as long as there is anybody to owe it to.
  if (--found->second.open == 0 && found->second.tag <= latest_start_) tenants_.erase(found);
  if (open_count_ == 0) reset();
}

void FairQueue::reset() {
  tenants_.clear();
  open_count_ = 0;
  waiting_count_ = 0;
  latest_start_ = 0;
}

void FairQueue::add(Tenant& tenant, const Place& place) {
  tenant.waiting.insert(place);
  ++waiting_count_;
}

void FairQueue::remove(Tenant& tenant, const Place& place) {
  const size_t erased = tenant.waiting.erase(place);
  CHECK(erased == 1, "sequence {} does not wait", place.id);
  --waiting_count_;
}

std::vector<FairQueue::Place> FairQueue::heads() const {
  std::vector<Place> places;
  for (const auto& [name, tenant] : tenants_) {
    if (!tenant.waiting.empty()) places.push_back(head(tenant));
  }
  std::ranges::sort(places);
  return places;
}

double FairQueue::admit(Tenant& tenant, double tokens) {
  const double start = tenant.tag;
  tenant.tag += tokens;
  latest_start_ = std::max(latest_start_, start);
  return start;
}

}  // namespace lockstep
