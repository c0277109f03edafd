// The calls that readers of files make to the kernel. A value of its own, so that tests can put
// faults in between: refusals, short reads, errors.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/result.h"
#include "engine/machine/node_memory.h"

struct io_uring;
struct iovec;

namespace lockstep {

// Called by several threads at once. What fails gives a negative error number.
class DiskCalls {
 public:
  virtual ~DiskCalls() = default;

  // Opens a file for reading past the page cache.
  virtual int open_direct(const char* path);

  virtual ssize_t pread(int descriptor, std::span<std::byte> bytes, uint64_t offset);

  virtual int make_ring(unsigned entries, io_uring& ring);
  virtual int register_files(io_uring& ring, std::span<const int> descriptors);
  virtual int register_buffers(io_uring& ring, std::span<const iovec> buffers);
  virtual int submit(io_uring& ring);

  // Sees every read that has ended, from a ring or from pread(): `result` bytes of `bytes` were
  // filled from `offset` on, or it is a negative error number. What it returns counts instead.
  virtual int64_t ended(uint64_t offset, std::span<std::byte> bytes, int64_t result);

  virtual Result<NodeMemory> allocate(const MemoryRequest& request);
};

// The kernel's own answers.
DiskCalls& real_disk_calls();

}  // namespace lockstep
