#include "engine/machine/populate.h"

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "engine/machine/arena_rules.h"
#include "engine/machine/memory_calls.h"
#include "engine/machine/workers.h"

namespace lockstep {
namespace {

// Small enough that the last slice keeps nobody waiting, large enough that taking one costs nothing
// beside filling it (about 15 ms).
constexpr size_t kSliceBytes = 64U << 20U;

// A signal interrupts the kernel's work; it goes on where it was. Bounded, so that a kernel that
// always says so cannot hold up the start for ever.
constexpr int kTries = 1000;

enum class Touch { kWrite, kRead };

int populate_slice(MemoryCalls& calls, std::byte* data, size_t bytes, Touch touch) {
  int error = 0;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const bool reads = touch == Touch::kRead;
    if ((reads ? calls.populate_read(data, bytes) : calls.populate(data, bytes)) == 0) return 0;
    error = errno;
    if (error != EINTR && error != EAGAIN) break;
  }
  if (error != EINVAL && error != ENOSYS) return error;
  // A kernel before 5.14. Never reached for pages of a pool that could be refused here.
  for (size_t offset = 0; offset < bytes; offset += kSmallPageBytes) {
    volatile std::byte& first = *const_cast<volatile std::byte*>(data + offset);
    if (touch == Touch::kRead) {
      [[maybe_unused]] const std::byte value = first;
    } else {
      first = std::byte{0};
    }
  }
  return 0;
}

// Slice after slice: a worker that is free takes the next.
int populate_all(MemoryCalls& calls, std::span<std::byte> memory, size_t page_bytes,
                 Workers* workers, Touch touch) {
  const size_t slice_bytes = std::max(kSliceBytes, page_bytes);
  std::atomic<size_t> next = 0;  // offset of the slice to take
  std::atomic<int> failed = 0;   // the first error; read by all, so that they stop
  const auto work = [&](size_t) {
    while (failed.load(std::memory_order_relaxed) == 0) {
      const size_t offset = next.fetch_add(slice_bytes, std::memory_order_relaxed);
      if (offset >= memory.size()) return;
      const size_t bytes = std::min(slice_bytes, memory.size() - offset);
      const int error = populate_slice(calls, memory.data() + offset, bytes, touch);
      int none = 0;
      if (error != 0) failed.compare_exchange_strong(none, error);
    }
  };
  if (workers != nullptr) {
    workers->run(work);
  } else {
    work(0);
  }
  return failed;
}

}  // namespace

int populate(MemoryCalls& calls, std::span<std::byte> memory, size_t page_bytes, Workers* workers) {
  return populate_all(calls, memory, page_bytes, workers, Touch::kWrite);
}

int populate_filled(MemoryCalls& calls, std::span<std::byte> memory, size_t page_bytes,
                    Workers* workers) {
  return populate_all(calls, memory, page_bytes, workers, Touch::kRead);
}

}  // namespace lockstep
