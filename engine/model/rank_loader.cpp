#include "engine/model/rank_loader.h"

#include <new>
#include <utility>

namespace lockstep {

void LoadState::fail(Error error) {
  const MutexLock lock(mutex_);
  if (!error_) error_ = std::move(error);
  has_failed_.store(true, std::memory_order_relaxed);
}

void LoadState::fail_for_memory() {
  const MutexLock lock(mutex_);
  if (!error_) error_ = std::move(no_memory_);
  has_failed_.store(true, std::memory_order_relaxed);
}

std::optional<Error> LoadState::error() const {
  const MutexLock lock(mutex_);
  return error_;
}

RankLoader::RankLoader(const LoadPlaces& places, std::span<const LoadExtent> extents,
                       std::unique_ptr<ReadQueue> queue, GpuMemory pinned, LoadState& state)
    : places_(places),
      extents_(extents),
      queue_(std::move(queue)),
      pinned_(std::move(pinned)),
      state_(state),
      reads_(queue_->buffer_count()) {
  for (size_t buffer = 0; buffer < queue_->buffer_count(); ++buffer) free_.push_back(buffer);
}

// Nothing in here allocates but load(), which catches: the worker that waits for all must not be
// torn out of it.
void RankLoader::work() {
  MutexLock lock(mutex_);
  for (;;) {
    start_reads();
    if (const auto buffer = queue_->next_ended()) {
      const Read read = reads_[*buffer];
      lock.unlock();
      load(*buffer, read);
      lock.lock();
      free_.push_back(*buffer);
      continue;
    }
    const bool all_started = state_.has_failed() || next_extent_ == extents_.size();
    if (all_started && queue_->in_flight() == 0) break;
    if (queue_->in_flight() > 0 && !is_waiting_) {
      // Sleeps in the kernel until a read has ended. Another worker takes over waiting if there is
      // more in flight: this one goes on to pack.
      is_waiting_ = true;
      lock.unlock();
      const ReadQueue::Completion completion = queue_->wait();
      lock.lock();
      is_waiting_ = false;
      queue_->collect(completion);
      changed_.notify_one();
    } else {
      changed_.wait(mutex_);
    }
  }
  changed_.notify_all();
}

// Into every free buffer, as long as there is something to read.
void RankLoader::start_reads() {
  bool some_cached = false;
  while (!free_.empty() && next_extent_ < extents_.size() && !state_.has_failed()) {
    const size_t buffer = free_.back();
    free_.pop_back();
    const LoadExtent& extent = extents_[next_extent_];
    DirectFile& file = *places_.files[extent.part];
    const bool cached = file.is_direct()
                            ? state_.from_cache() && file.is_cached(extent.offset, extent.bytes)
                            : file.was_cached(extent.offset, extent.bytes);
    reads_[buffer] = {.extent = next_extent_++, .was_cached = cached};
    if (cached) state_.add_cached(extent.bytes);
    some_cached = some_cached || cached;
    queue_->start(buffer, extent.part, extent.offset, extent.bytes, cached);
  }
  queue_->submit();
  // Copies from the page cache are every worker's.
  if (some_cached) changed_.notify_all();
}

void RankLoader::load(size_t buffer, const Read& read) {
  if (state_.has_failed()) return;
  const LoadExtent& extent = extents_[read.extent];
  try {
    const auto bytes = queue_->take(buffer);
    if (!bytes) return state_.fail(bytes.error());
    DirectFile& file = *places_.files[extent.part];
    if (!file.is_direct() && !read.was_cached) {
      file.drop(queue_->range(buffer));
      state_.add_dropped(extent.bytes);
    }
    for (const ExtentOwner& owner : extent.owners) {
      const auto taken =
          places_.sinks[owner.rank]->take({.weight = places_.graph.weights()[extent.weight],
                                           .slice = *owner.slice,
                                           .to = places_.arenas[owner.rank] + owner.slice->offset,
                                           .extent = extent,
                                           .bytes = bytes->data(),
                                           .pinned = pinned_.size_bytes() > 0});
      if (!taken) return state_.fail(taken.error());
    }
    state_.add_done(extent.bytes);
  } catch (const std::bad_alloc&) {
    state_.fail_for_memory();
  }
}

}  // namespace lockstep
