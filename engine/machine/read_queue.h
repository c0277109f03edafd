// Reads in flight: one rank's queue with the kernel (io_uring) and its buffers, which are
// registered with it and lie on the rank's node. If the kernel has no io_uring, or forbids it,
// the thread that takes a buffer reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/machine/direct_file.h"
#include "engine/machine/disk_calls.h"
#include "engine/machine/node_memory.h"

struct io_uring;

namespace lockstep {

class Workers;

struct ReadQueueRequest {
  size_t buffer_count = 0;
  size_t buffer_bytes = 0;  // each; a multiple of every file's block
  bool io_uring = true;     // false: never
  int node = -1;            // where the buffers lie
  Workers* workers = nullptr;
};

// A buffer is free, then started, then ended, and free again when its owner says start() with it
// once more. Which calls may overlap: start(), submit(), collect(), next_ended() and in_flight()
// are made by one thread at a time (under the owner's lock); wait() by one thread at a time, also
// while others make those calls; take() by the thread that got the buffer from next_ended().
class ReadQueue {
 public:
  // `files` and `calls` must outlive the queue. Fails with kMachineRefused when there is no memory
  // for the buffers; everything else has a slower way.
  static Result<std::unique_ptr<ReadQueue>> make(std::span<const std::unique_ptr<DirectFile>> files,
                                                 const ReadQueueRequest& request, DiskCalls& calls);

  // Nothing may be in flight.
  ~ReadQueue();
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;

  size_t buffer_count() const { return reads_.size(); }
  size_t size_bytes() const { return memory_.size_bytes(); }
  // All buffers, in whole pages.
  std::span<std::byte> memory() const { return {memory_.data(), memory_.size_bytes()}; }
  bool has_ring() const { return ring_ != nullptr; }
  int ring_error() const { return ring_error_; }  // why there is none; 0: there is, or none asked
  bool has_registered_buffers() const { return has_registered_buffers_; }

  // Begins to fill a free buffer with a range of a file; submit() hands it to the kernel. The
  // range and the blocks it begins and ends in fit into a buffer. With `cached`, take() copies it
  // from the page cache: on the thread that wants it, since the kernel's own are no faster.
  void start(size_t buffer, size_t file, uint64_t offset, size_t bytes, bool cached = false);
  void submit();

  // Reads that the kernel has and wait() will return from.
  size_t in_flight() const { return in_flight_; }

  struct Completion {
    size_t buffer = 0;
    int64_t result = 0;
  };
  // Sleeps until a read has ended; something must be in flight.
  Completion wait();
  // Takes note of it; what was read short goes on.
  void collect(const Completion& completion);

  // A buffer whose read is over, in whatever way.
  std::optional<size_t> next_ended();

  // The range that was read into a buffer. Reads here what is left to be read. Fails with
  // kMachineRefused, naming file, offset and reason.
  Result<std::span<const std::byte>> take(size_t buffer);

  // The blocks that were read into the buffer, for DirectFile::drop().
  const BlockRange& range(size_t buffer) const { return reads_[buffer].range; }

 private:
  struct Read {
    size_t file = 0;
    BlockRange range;
    size_t had = 0;       // bytes that were there before the part that is in flight
    size_t begun_at = 0;  // where that part begins in the buffer
    size_t done = 0;      // bytes of the range that are there
    bool direct = false;  // how the part in flight is read
    bool cached = false;  // it is copied from the page cache
    int error = 0;        // why it failed; 0: it did not
  };
  struct CloseRing {
    void operator()(io_uring* ring) const;
  };

  ReadQueue(std::span<const std::unique_ptr<DirectFile>> files, DiskCalls& calls)
      : files_(files), calls_(calls) {}
  void make_ring();
  void prepare(size_t buffer);
  void give_up_ring();
  std::span<std::byte> part_in_flight(const Read& read, size_t buffer) const;
  std::byte* address(size_t buffer) const { return memory_.data() + buffer * buffer_bytes_; }

  std::span<const std::unique_ptr<DirectFile>> files_;
  DiskCalls& calls_;
  NodeMemory memory_;
  size_t buffer_bytes_ = 0;
  std::vector<Read> reads_;      // by buffer
  std::vector<size_t> pending_;  // prepared, not yet with the kernel; in this order
  std::vector<size_t> ended_;
  size_t in_flight_ = 0;
  int ring_error_ = 0;
  bool has_registered_files_ = false;
  bool has_registered_buffers_ = false;
  bool has_given_up_ = false;                  // the ring: nothing more is submitted
  std::unique_ptr<io_uring, CloseRing> ring_;  // goes before the buffers do
};

}  // namespace lockstep
