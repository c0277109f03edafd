#include "engine/machine/memory_calls.h"

#include <numaif.h>
#include <sys/mman.h>
#include <unistd.h>

#include <climits>
#include <vector>

namespace lockstep {

void* MemoryCalls::map(void* address, size_t bytes, int protection, int flags, int descriptor) {
  return ::mmap(address, bytes, protection, flags, descriptor, 0);
}

int MemoryCalls::unmap(void* address, size_t bytes) {
  return ::munmap(address, bytes);
}

int MemoryCalls::protect(void* address, size_t bytes, int protection) {
  return ::mprotect(address, bytes, protection);
}

int MemoryCalls::advise(void* address, size_t bytes, int advice) {
  return ::madvise(address, bytes, advice);
}

int MemoryCalls::populate(void* address, size_t bytes) {
  return ::madvise(address, bytes, MADV_POPULATE_WRITE);
}

int MemoryCalls::populate_read(void* address, size_t bytes) {
  return ::madvise(address, bytes, MADV_POPULATE_READ);
}

int MemoryCalls::lock(void* address, size_t bytes) {
  return ::mlock(address, bytes);
}

long MemoryCalls::bind(void* address, size_t bytes, int node) {
  constexpr size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
  const auto bit = static_cast<size_t>(node);
  std::vector<unsigned long> mask(bit / kWordBits + 1);
  mask[bit / kWordBits] = 1UL << (bit % kWordBits);
  // The kernel reads one bit less than it is told.
  return ::mbind(address, bytes, MPOL_BIND, mask.data(), mask.size() * kWordBits + 1, 0);
}

int MemoryCalls::make_memfd(const char* name, unsigned flags) {
  return ::memfd_create(name, flags);
}

int MemoryCalls::resize(int descriptor, size_t bytes) {
  return ::ftruncate(descriptor, static_cast<off_t>(bytes));
}

int MemoryCalls::close(int descriptor) {
  return ::close(descriptor);
}

long MemoryCalls::query_pages(void** pages, size_t count, int* status) {
  return ::move_pages(0, count, pages, nullptr, status, 0);
}

std::filesystem::path MemoryCalls::root() const {
  return "/";
}

MemoryCalls& MemoryCalls::system() {
  static MemoryCalls calls;
  return calls;
}

}  // namespace lockstep
