#include "engine/scheduler/queue_shares.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace lockstep {

std::expected<std::vector<QueueShares::GroupId>, QueueShares::Shortage> QueueShares::check(
    const Demand& demand, const Limits& limits) const {
  auto tenants = tenants_;  // as they would be
  size_t places = places_;
  size_t tokens = prompt_tokens_;
  const Tenant own = tenants[demand.tenant];  // the one that asks is one of them
  const size_t place_share = limits.places / tenants.size();
  const size_t token_share = limits.prompt_tokens / tenants.size();
  const bool fits_place_share = own.places + demand.places <= place_share;
  const bool fits_token_share = own.prompt_tokens + demand.prompt_tokens <= token_share;

  std::set<GroupId> gone;
  // The last group, with something that waits, of the tenant that is the furthest above its share.
  const auto next_to_go = [&](size_t Tenant::*amount, size_t share,
                              bool leaves_one) -> std::optional<GroupId> {
    std::optional<GroupId> last;
    size_t most = share;
    for (auto entry = groups_.rbegin(); entry != groups_.rend(); ++entry) {
      const auto& [id, group] = *entry;
      if (group.waiting == 0 || gone.contains(id) || group.tenant == demand.tenant) continue;
      const Tenant& tenant = tenants.at(group.tenant);
      if (tenant.*amount <= most || (leaves_one && tenant.groups < 2)) continue;
      most = tenant.*amount;
      last = id;
    }
    return last;
  };
  const auto displace = [&](GroupId id) {
    const Group& group = groups_.at(id);
    Tenant& tenant = tenants.at(group.tenant);
    --tenant.groups;
    tenant.places -= group.places;
    tenant.prompt_tokens -= group.prompt_tokens;
    places -= group.places;
    tokens -= group.prompt_tokens;
    gone.insert(id);
  };
  while (places + demand.places > limits.places) {
    const auto id =
        fits_place_share ? next_to_go(&Tenant::places, place_share, false) : std::nullopt;
    if (!id) return std::unexpected(Shortage::kPlaces);
    displace(*id);
  }
  while (tokens > 0 && tokens + demand.prompt_tokens > limits.prompt_tokens) {
    std::optional<GroupId> id;
    if (fits_token_share) {
      id = next_to_go(&Tenant::prompt_tokens, token_share, false);
    } else if (own.groups == 0) {
      id = next_to_go(&Tenant::prompt_tokens, token_share, true);
    }
    if (!id) return std::unexpected(Shortage::kPromptTokens);
    displace(*id);
  }
  return std::vector<GroupId>(gone.begin(), gone.end());
}

std::expected<std::vector<QueueShares::GroupId>, QueueShares::Shortage> QueueShares::take(
    GroupId id, const Demand& demand, const Limits& limits) {
  auto displaced = check(demand, limits);
  if (!displaced) return displaced;
  Group group{.tenant = demand.tenant,
              .requests = demand.requests,
              .waiting = demand.requests,
              .places = demand.places,
              .prompt_tokens = demand.prompt_tokens};
  const auto [entry, is_new] = tenants_.try_emplace(demand.tenant);
  try {
    groups_.emplace(id, std::move(group));
  } catch (...) {
    if (is_new) tenants_.erase(entry);
    throw;
  }
  for (const GroupId gone : *displaced) leave(gone);
  Tenant& tenant = entry->second;
  ++tenant.groups;
  tenant.places += demand.places;
  tenant.prompt_tokens += demand.prompt_tokens;
  places_ += demand.places;
  prompt_tokens_ += demand.prompt_tokens;
  return displaced;
}

void QueueShares::start(GroupId id, size_t prompt_tokens) {
  const auto found = groups_.find(id);
  if (found == groups_.end()) return;
  --found->second.waiting;
  found->second.prompt_tokens -= prompt_tokens;
  tenants_.at(found->second.tenant).prompt_tokens -= prompt_tokens;
  prompt_tokens_ -= prompt_tokens;
}

void QueueShares::end(GroupId id, size_t places, size_t prompt_tokens, bool waited) {
  if (waited) start(id, prompt_tokens);
  const auto found = groups_.find(id);
  if (found == groups_.end()) return;
  Group& group = found->second;
  group.places -= places;
  tenants_.at(group.tenant).places -= places;
  places_ -= places;
  if (--group.requests == 0) leave(id);
}

void QueueShares::leave(GroupId id) {
  const auto found = groups_.find(id);
  const Group& group = found->second;
  const auto tenant = tenants_.find(group.tenant);
  tenant->second.places -= group.places;
  tenant->second.prompt_tokens -= group.prompt_tokens;
  places_ -= group.places;
  prompt_tokens_ -= group.prompt_tokens;
  if (--tenant->second.groups == 0) tenants_.erase(tenant);
  groups_.erase(found);
}

}  // namespace lockstep
