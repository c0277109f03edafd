#include "server/http/networks.h"

namespace lockstep {
namespace {

constexpr size_t kTimesLeft = 2;
// As many connections as one address has by default hold 16 MiB of them.
constexpr size_t kSmallBodyBytes = 64 * 1024;

}  // namespace

Networks::Place::Place(Networks& networks, const std::string& name, bool is_over_limit)
    : table_(&networks.table_),
      entry_(&*networks.table_.try_emplace(name).first),
      is_over_limit_(is_over_limit) {
  ++count();
}

Networks::Place::~Place() {
  if (table_ == nullptr) return;
  --count();
  if (entry_->second.connections + entry_->second.over_limit > 0) return;
  const auto found = table_->find(entry_->first);
  table_->erase(found);
}

Network Networks::find(const std::string& name) const {
  const auto found = table_.find(name);
  return found == table_.end() ? Network() : found->second;
}

bool may_hold_body(size_t body_bytes, size_t network_bytes, size_t all_bytes, size_t bytes_max) {
  if (all_bytes > bytes_max) return false;
  if (body_bytes <= kSmallBodyBytes || network_bytes == body_bytes) return true;
  return network_bytes <= kTimesLeft * (bytes_max - all_bytes);
}

bool may_serve(size_t served, size_t busy, size_t most) {
  if (busy >= most) return false;
  return served == 0 || served + 1 <= kTimesLeft * (most - busy - 1);
}

size_t threads_for_one(size_t wanted) {
  return wanted + (wanted + kTimesLeft - 1) / kTimesLeft;
}

}  // namespace lockstep
