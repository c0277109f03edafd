// One rank's part of a load: its workers keep its queue's reads in flight and give what has ended
// to those whose it is.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/base/result.h"
#include "engine/machine/read_queue.h"
#include "engine/model/load_extents.h"
#include "engine/model/weight_sink.h"

namespace lockstep {

// The state that the ranks of a load have in common.
class LoadState {
 public:
  // `from_cache`: what lies in the page cache is copied from there, else from the disk as well.
  LoadState(std::atomic<uint64_t>& bytes_done, bool from_cache)
      : bytes_done_(bytes_done), from_cache_(from_cache) {}

  bool from_cache() const { return from_cache_; }

  bool has_failed() const { return has_failed_.load(std::memory_order_relaxed); }
  // The first error wins.
  void fail(Error error);
  void fail_for_memory();
  void add_done(uint64_t bytes) { bytes_done_.fetch_add(bytes, std::memory_order_relaxed); }
  void add_dropped(uint64_t bytes) { dropped_.fetch_add(bytes, std::memory_order_relaxed); }
  void add_cached(uint64_t bytes) { cached_.fetch_add(bytes, std::memory_order_relaxed); }

  // When all workers are done.
  std::optional<Error> error() const;
  uint64_t dropped_bytes() const { return dropped_.load(std::memory_order_relaxed); }
  uint64_t cached_bytes() const { return cached_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t>& bytes_done_;
  const bool from_cache_;
  std::atomic<uint64_t> dropped_ = 0;
  std::atomic<uint64_t> cached_ = 0;
  std::atomic<bool> has_failed_ = false;
  mutable Mutex mutex_;
  std::optional<Error> error_ LOCKSTEP_GUARDED_BY(mutex_);
  // Made before there is none.
  Error no_memory_ LOCKSTEP_GUARDED_BY(mutex_) = {ErrorKind::kMachineRefused,
                                                  "no memory left for reading weights; free some"};
};

// The files that weights come from, and the memory that they go to.
struct LoadPlaces {
  const Graph& graph;
  std::vector<std::unique_ptr<DirectFile>> files = {};  // by part of the model
  std::vector<WeightSink*> sinks = {};                  // by rank
  std::vector<std::byte*> arenas = {};                  // of weights, by rank
};

class RankLoader {
 public:
  // Everything that is referred to must outlive this. `pinned`: the queue's buffers, if they are.
  RankLoader(const LoadPlaces& places, std::span<const LoadExtent> extents,
             std::unique_ptr<ReadQueue> queue, GpuMemory pinned, LoadState& state);

  // Run by every worker of the rank at the same time. Returns when there is nothing left to do for
  // the caller, or the load has failed; then nothing is in flight any more, once all have returned.
  void work();

  const ReadQueue& queue() const { return *queue_; }

 private:
  // The read that a buffer holds, or will.
  struct Read {
    size_t extent = 0;
    bool was_cached = false;  // its stretch lies in the page cache, and stays
  };

  void start_reads() LOCKSTEP_REQUIRES(mutex_);
  void load(size_t buffer, const Read& read) LOCKSTEP_EXCLUDES(mutex_);

  const LoadPlaces& places_;
  std::span<const LoadExtent> extents_;
  std::unique_ptr<ReadQueue> queue_;
  GpuMemory pinned_;
  LoadState& state_;

  Mutex mutex_;  // guards the queue as well, but for its wait(), range() and take()
  ConditionVariable changed_;
  size_t next_extent_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  bool is_waiting_ LOCKSTEP_GUARDED_BY(mutex_) = false;   // a worker is in the queue's wait()
  std::vector<size_t> free_ LOCKSTEP_GUARDED_BY(mutex_);  // buffers
  std::vector<Read> reads_ LOCKSTEP_GUARDED_BY(mutex_);   // by buffer
};

}  // namespace lockstep
