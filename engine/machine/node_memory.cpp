#include "engine/machine/node_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "engine/base/checked_math.h"
#include "engine/machine/control_group.h"

namespace lockstep {
namespace {

constexpr size_t kHugePageBytes = 2U << 20U;
constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// Left over for everything else; below it the kernel starts to kill.
constexpr uint64_t kReserveBytes = 64U << 20U;

uint64_t memory_info_bytes(std::string_view key) {
  std::ifstream file("/proc/meminfo");
  std::string word;
  uint64_t kibibytes = 0;
  while (file >> word) {
    if (word == key && file >> kibibytes) return kibibytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return kUnlimited;
}

}  // namespace

uint64_t available_memory_bytes() {
  const uint64_t available = memory_info_bytes("MemAvailable:");
  return std::min(available, read_control_group_limits().memory_left_bytes.value_or(kUnlimited));
}

Result<NodeMemory> NodeMemory::allocate(const MemoryRequest& request) {
  NodeMemory memory;
  if (request.bytes == 0) return memory;
  const size_t size = round_up(request.bytes, kHugePageBytes);
  const auto refused = [&](std::string_view reason) {
    return machine_refused(
        "cannot take {} MiB of memory for {}: {}; {} MiB are available. Use a smaller model, "
        "--context or --sequences, or free memory",
        size >> 20U, request.what, reason, available_memory_bytes() >> 20U);
  };
  // Overcommit lets a mapping succeed that would be killed when touched: ask first.
  if (size > available_memory_bytes() || available_memory_bytes() - size < kReserveBytes) {
    return refused("not enough is available");
  }
  // One huge page more than needed, so that an aligned stretch lies within.
  void* mapping = mmap(nullptr, size + kHugePageBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return refused(std::strerror(errno));
  const auto start = reinterpret_cast<uintptr_t>(mapping);
  const uintptr_t aligned = round_up<uintptr_t>(start, kHugePageBytes);
  if (aligned > start) munmap(mapping, aligned - start);
  const uintptr_t end = start + size + kHugePageBytes;
  if (end > aligned + size) munmap(reinterpret_cast<void*>(aligned + size), end - aligned - size);
  memory.data_ = reinterpret_cast<std::byte*>(aligned);
  memory.size_bytes_ = size;
  madvise(memory.data_, size, MADV_HUGEPAGE);  // a kernel without huge pages says no; 4 KiB do
  if (madvise(memory.data_, size, MADV_POPULATE_WRITE) != 0) {
    if (errno == ENOMEM || errno == EFAULT) return refused(std::strerror(errno));
    std::memset(memory.data_, 0, size);  // a kernel before 5.14
  }
  return memory;
}

NodeMemory::NodeMemory(NodeMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      page_kind_(other.page_kind_) {}

NodeMemory& NodeMemory::operator=(NodeMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(page_kind_, other.page_kind_);
  return *this;
}

NodeMemory::~NodeMemory() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
}

}  // namespace lockstep
