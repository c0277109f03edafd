#include "tests/engine/machine/faulty_calls.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace lockstep::test {
namespace {

// ended() is called by the thread that has called pread(), right after it.
thread_local bool is_from_pread = false;

}  // namespace

int FaultyCalls::open_direct(const char* path) {
  return open_direct_error != 0 ? -open_direct_error : DiskCalls::open_direct(path);
}

ssize_t FaultyCalls::pread(int descriptor, std::span<std::byte> bytes, uint64_t offset) {
  const bool direct = (::fcntl(descriptor, F_GETFL) & O_DIRECT) != 0;
  if (!direct) buffered_ = true;
  is_from_pread = true;
  return DiskCalls::pread(descriptor, bytes, offset);
}

int FaultyCalls::make_ring(unsigned entries, io_uring& ring) {
  return ring_error != 0 ? -ring_error : DiskCalls::make_ring(entries, ring);
}

int FaultyCalls::register_files(io_uring& ring, std::span<const int> descriptors) {
  return files_error != 0 ? -files_error : DiskCalls::register_files(ring, descriptors);
}

int FaultyCalls::register_buffers(io_uring& ring, std::span<const iovec> buffers) {
  return buffers_error != 0 ? -buffers_error : DiskCalls::register_buffers(ring, buffers);
}

int FaultyCalls::submit(io_uring& ring) {
  {
    const std::lock_guard lock(mutex_);
    if (submit_error != 0 && submit_errors > 0) {
      --submit_errors;
      return -submit_error;
    }
  }
  return DiskCalls::submit(ring);
}

int64_t FaultyCalls::ended(uint64_t offset, std::span<std::byte> bytes, int64_t result) {
  const bool from_pread = std::exchange(is_from_pread, false);
  const std::lock_guard lock(mutex_);
  const size_t read = reads_++;
  if (after_read) after_read(read);
  if (read == read_to_fail) return -read_error;
  if (direct_read_error != 0 && !buffered_) return -direct_read_error;
  if (is_erratic_) result = erratic(offset, bytes, result, from_pread);
  if (result > 0) seen_.push_back({offset, offset + static_cast<uint64_t>(result)});
  return result;
}

// Bytes beyond those that were "read" are spoilt.
int64_t FaultyCalls::erratic(uint64_t offset, std::span<std::byte> bytes, int64_t result,
                             bool from_pread) {
  constexpr int kPassing[] = {EINTR, EAGAIN, ENOBUFS, ENOMEM};  // the last two of rings only
  const uint64_t kind = random_() % 64;
  if (kind < 6 && failed_once_.insert(offset).second) {
    std::ranges::fill(bytes, std::byte{0xEE});
    return -kPassing[kind % (from_pread ? 2 : 4)];
  }
  if (kind < 32 && result > 1) {
    const auto kept = static_cast<size_t>(1 + random_() % static_cast<uint64_t>(result - 1));
    std::ranges::fill(bytes.subspan(kept), std::byte{0xEE});
    return static_cast<int64_t>(kept);
  }
  return result;
}

Result<NodeMemory> FaultyCalls::allocate(const MemoryRequest& request) {
  if (allocations_++ == allocation_to_fail) {
    return machine_refused("cannot take {} bytes of memory for {}", request.bytes, request.what);
  }
  return DiskCalls::allocate(request);
}

}  // namespace lockstep::test
