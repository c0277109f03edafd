#include "engine/machine/disk_calls.h"

#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <cerrno>

namespace lockstep {

int DiskCalls::open_direct(const char* path) {
  const int descriptor = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
  return descriptor >= 0 ? descriptor : -errno;
}

ssize_t DiskCalls::pread(int descriptor, std::span<std::byte> bytes, uint64_t offset) {
  const ssize_t count = ::pread(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
  return count >= 0 ? count : -errno;
}

int DiskCalls::make_ring(unsigned entries, io_uring& ring) {
  return io_uring_queue_init(entries, &ring, 0);
}

int DiskCalls::register_files(io_uring& ring, std::span<const int> descriptors) {
  return io_uring_register_files(&ring, descriptors.data(),
                                 static_cast<unsigned>(descriptors.size()));
}

int DiskCalls::register_buffers(io_uring& ring, std::span<const iovec> buffers) {
  return io_uring_register_buffers(&ring, buffers.data(), static_cast<unsigned>(buffers.size()));
}

int DiskCalls::submit(io_uring& ring) {
  return io_uring_submit(&ring);
}

int64_t DiskCalls::ended(uint64_t /*offset*/, std::span<std::byte> /*bytes*/, int64_t result) {
  return result;
}

Result<NodeMemory> DiskCalls::allocate(const MemoryRequest& request) {
  return NodeMemory::allocate(request);
}

DiskCalls& real_disk_calls() {
  static DiskCalls calls;
  return calls;
}

}  // namespace lockstep
