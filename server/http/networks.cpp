#include "server/http/networks.h"

namespace lockstep {
namespace {

constexpr size_t kTimesLeft = 2;
// As many connections as one address has by default hold 16 MiB of them.
constexpr size_t kSmallBodyBytes = 64 * 1024;
// Parts that are kept: of threads for clients that hold none, of bytes for networks that hold none
// and, half of it, for small bodies.
constexpr size_t kKeptParts = 8;
constexpr size_t kSmallParts = 2 * kKeptParts;

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
  const size_t left = bytes_max - all_bytes;
  if (body_bytes <= kSmallBodyBytes || all_bytes == body_bytes) return true;
  if (network_bytes == body_bytes) return left >= bytes_max / kSmallParts;
  return network_bytes <= kTimesLeft * left && left >= bytes_max / kKeptParts;
}

bool may_serve(size_t served, size_t busy, size_t most) {
  if (busy >= most) return false;
  const size_t left = most - busy - 1;
  return served == 0 || (served + 1 <= kTimesLeft * left && left >= most / kKeptParts);
}

size_t threads_for_one(size_t wanted) {
  return wanted + (wanted + kTimesLeft - 1) / kTimesLeft;
}

}  // namespace lockstep
