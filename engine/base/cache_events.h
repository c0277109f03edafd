// The changes of the prefix cache, on their way from the engine's thread to one that publishes
// them. The engine's thread waits for no more than the reader's exchange of two vectors: where the
// reader is too slow, or there is no memory, events are dropped and counted, and the next one says
// that some are missing.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/mutex.h"

namespace lockstep {

struct CacheEvent {
  enum class Kind : uint8_t {
    kStored,   // a block is known from now on
    kRemoved,  // a block is known no longer
    kCleared,  // none is
  };

  Kind kind = Kind::kCleared;
  bool is_after_gap = false;  // events between the one before and this one were dropped
  // A keyed hash of the owner, the salt and all tokens up to the block's end: 64 bits of its key.
  uint64_t block = 0;
  // With kStored: the block before it, none for a prefix's first; its tokens; and for a first one
  // the salt of its requests.
  std::optional<uint64_t> before = {};
  std::vector<int32_t> tokens = {};
  std::string salt = {};

  friend bool operator==(const CacheEvent&, const CacheEvent&) = default;
};

class CacheEvents {
 public:
  static constexpr size_t kQueuedMost = 16'384;  // blocks of 64 tokens: a million tokens

  explicit CacheEvents(size_t queued_most = kQueuedMost);

  // The engine's thread.
  void store(uint64_t block, std::optional<uint64_t> before, std::span<const int32_t> tokens,
             std::string_view salt) noexcept;
  void remove(uint64_t block) noexcept;
  void clear() noexcept;

  // One reader: waits until there are events, stop() is called or `patience` is over, and moves
  // what there is into `events`, which it clears before. False: none will come any more.
  bool take(std::vector<CacheEvent>& events, std::chrono::milliseconds patience);
  // Any thread. What is queued can still be taken.
  void stop();

  // Any thread: events that the cache has told so far, and those of them that were dropped.
  uint64_t told_count() const { return told_count_.load(std::memory_order_relaxed); }
  uint64_t dropped_count() const { return dropped_count_.load(std::memory_order_relaxed); }

 private:
  template <typename Fill>
  void add(const Fill& fill) noexcept;

  const size_t queued_most_;
  std::atomic<uint64_t> told_count_ = 0;
  std::atomic<uint64_t> dropped_count_ = 0;
  Mutex mutex_;
  ConditionVariable changed_;  // queued_ is empty no longer, or is_stopping_
  std::vector<CacheEvent> queued_ LOCKSTEP_GUARDED_BY(mutex_);
  bool has_gap_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // before the next event
  bool is_stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep
