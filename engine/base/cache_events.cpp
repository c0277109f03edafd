#include "engine/base/cache_events.h"

#include <new>
#include <utility>

namespace lockstep {

CacheEvents::CacheEvents(size_t queued_most) : queued_most_(queued_most) {
  queued_.reserve(queued_most_);
}

// A kRemoved that is lost would be believed for ever: hence the gap, which tells the reader.
template <typename Fill>
void CacheEvents::add(const Fill& fill) noexcept {
  told_count_.fetch_add(1, std::memory_order_relaxed);
  bool was_empty = false;
  {
    const MutexLock lock(mutex_);
    was_empty = queued_.empty();
    bool has_space = queued_.size() < queued_most_;
    if (has_space) {
      try {
        CacheEvent event;
        fill(event);
        event.is_after_gap = has_gap_;
        queued_.push_back(std::move(event));
      } catch (const std::bad_alloc&) {
        has_space = false;
      }
    }
    has_gap_ = !has_space;
    if (!has_space) dropped_count_.fetch_add(1, std::memory_order_relaxed);
  }
  if (was_empty) changed_.notify_one();
}

void CacheEvents::store(uint64_t block, std::optional<uint64_t> before,
                        std::span<const int32_t> tokens, std::string_view salt) noexcept {
  add([&](CacheEvent& event) {
    event.kind = CacheEvent::Kind::kStored;
    event.block = block;
    event.before = before;
    event.tokens.assign(tokens.begin(), tokens.end());
    event.salt = salt;
  });
}

void CacheEvents::remove(uint64_t block) noexcept {
  add([&](CacheEvent& event) {
    event.kind = CacheEvent::Kind::kRemoved;
    event.block = block;
  });
}

void CacheEvents::clear() noexcept {
  add([](CacheEvent&) {});
}

bool CacheEvents::take(std::vector<CacheEvent>& events, std::chrono::milliseconds patience) {
  events.clear();
  events.reserve(queued_most_);
  const MutexLock lock(mutex_);
  const auto deadline = ConditionVariable::deadline_in(patience);
  while (queued_.empty() && !is_stopping_ && changed_.wait_until(mutex_, deadline)) {
  }
  std::swap(events, queued_);
  return !events.empty() || !is_stopping_;
}

void CacheEvents::stop() {
  const MutexLock lock(mutex_);
  is_stopping_ = true;
  changed_.notify_one();
}

}  // namespace lockstep
