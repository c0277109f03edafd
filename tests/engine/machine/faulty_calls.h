// Disks and kernels that fail in ways that a test chooses.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <random>
#include <set>
#include <vector>

#include "engine/machine/disk_calls.h"

namespace lockstep::test {

// Answers as the kernel does, but for what is set here. May be used by several threads once it is
// set up.
class FaultyCalls : public DiskCalls {
 public:
  // Errors that the call of this name gives, as positive numbers; 0: none.
  int open_direct_error = 0;
  int ring_error = 0;
  int files_error = 0;
  int buffers_error = 0;
  int submit_error = 0;
  int direct_read_error = 0;          // of every direct read, by ring or pread()
  size_t submit_errors = ~size_t{0};  // how often submit_error is given
  int allocation_to_fail = -1;        // counts from 0

  // The n-th read (from 0) gives this error.
  size_t read_to_fail = ~size_t{0};
  int read_error = 0;

  // Called after the n-th read (from 0), with n.
  std::function<void(size_t)> after_read;

  // With a seed: half of all reads are short, by any number of bytes, and some are to be tried
  // again.
  void make_erratic(uint64_t seed) {
    is_erratic_ = true;
    random_.seed(seed);
  }

  struct Seen {
    uint64_t offset = 0;
    uint64_t end = 0;
  };
  // The reads, as far as they were not said to have failed.
  std::vector<Seen> seen() const { return seen_; }
  size_t reads() const { return reads_; }

  int open_direct(const char* path) override;
  ssize_t pread(int descriptor, std::span<std::byte> bytes, uint64_t offset) override;
  int make_ring(unsigned entries, io_uring& ring) override;
  int register_files(io_uring& ring, std::span<const int> descriptors) override;
  int register_buffers(io_uring& ring, std::span<const iovec> buffers) override;
  int submit(io_uring& ring) override;
  int64_t ended(uint64_t offset, std::span<std::byte> bytes, int64_t result) override;
  Result<NodeMemory> allocate(const MemoryRequest& request) override;

 private:
  int64_t erratic(uint64_t offset, std::span<std::byte> bytes, int64_t result, bool from_pread);

  std::mutex mutex_;
  bool is_erratic_ = false;
  std::mt19937_64 random_;
  std::set<uint64_t> failed_once_;  // offsets
  std::vector<Seen> seen_;
  size_t reads_ = 0;
  std::atomic<bool> buffered_ = false;  // a direct read has been refused to pread()
  std::atomic<int> allocations_ = 0;
};

}  // namespace lockstep::test
