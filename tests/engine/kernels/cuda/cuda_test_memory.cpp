#include "tests/engine/kernels/cuda/cuda_test_memory.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <new>

namespace lockstep {
namespace {

constexpr size_t kStretchBytes = size_t{64} << 20U;  // taken from the machine at once, or more
constexpr size_t kStretches = 64;
// The alignment of every block, whose header lies before it in as many bytes.
constexpr size_t kAlignment = 64;

// True while this thread asks CUDA for memory: the runtime's own code allocates too, and must not
// come here while it does.
thread_local bool is_asking = false;

// Pinned memory of the host; null: CUDA refuses.
std::byte* take_stretch(size_t bytes) {
  void* memory = nullptr;
  void* on_gpu = nullptr;
  is_asking = true;
  const bool taken =
      cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped) == cudaSuccess &&
      cudaHostGetDevicePointer(&on_gpu, memory, 0) == cudaSuccess && on_gpu == memory;
  is_asking = false;
  return taken ? static_cast<std::byte*>(memory) : nullptr;
}

// Blocks of powers of two, which go back to a list of their size. Never destroyed: others' static
// objects are freed after it.
class GpuHeap {
 public:
  bool open() {
    const std::lock_guard lock(mutex_);
    return grow(kStretchBytes);
  }

  // Null while the heap is not open.
  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (count_ == 0) return nullptr;
    const size_t block_bytes = std::bit_ceil(bytes + kAlignment);
    const auto size_class = static_cast<size_t>(std::countr_zero(block_bytes));
    Block* block = free_[size_class];
    if (block != nullptr) {
      free_[size_class] = block->next;
    } else {
      if (block_bytes > left() && !grow(std::max(block_bytes, kStretchBytes))) {
        throw std::bad_alloc();
      }
      block = new (unused_) Block{nullptr, size_class};
      unused_ += block_bytes;
    }
    return reinterpret_cast<std::byte*>(block) + kAlignment;
  }

  // False: it is none of this heap's.
  bool give_back(void* address) {
    const std::lock_guard lock(mutex_);
    auto* const bytes = static_cast<std::byte*>(address);
    if (!has(bytes)) return false;
    auto* const block = reinterpret_cast<Block*>(bytes - kAlignment);
    block->next = free_[block->size_class];
    free_[block->size_class] = block;
    return true;
  }

 private:
  struct Block {
    Block* next;  // while it is free
    size_t size_class;
  };
  static_assert(sizeof(Block) <= kAlignment);

  struct Stretch {
    std::byte* begin;
    std::byte* end;
  };

  size_t left() const { return static_cast<size_t>(stretches_[count_ - 1].end - unused_); }

  bool has(const std::byte* address) const {
    const std::less<> before;
    return std::any_of(stretches_.begin(), stretches_.begin() + count_, [&](const Stretch& each) {
      return !before(address, each.begin) && before(address, each.end);
    });
  }

  // The rest of the last stretch is lost.
  bool grow(size_t bytes) {
    if (count_ == kStretches) return false;
    std::byte* const memory = take_stretch(bytes);
    if (memory == nullptr) return false;
    stretches_[count_++] = {memory, memory + bytes};
    unused_ = memory;
    return true;
  }

  std::mutex mutex_;
  std::array<Stretch, kStretches> stretches_ = {};
  size_t count_ = 0;
  std::byte* unused_ = nullptr;  // in the last of them
  std::array<Block*, 64> free_ = {};
};

constinit GpuHeap gpu_heap;

}  // namespace

void* take_from_heap(size_t bytes, size_t alignment) {
  if (alignment <= kAlignment && !is_asking) {
    if (void* const memory = gpu_heap.take(bytes)) return memory;
  }
  // Before the heap is open; and what is aligned to more, no test gives to a kernel.
  const size_t whole = (bytes + alignment) / alignment * alignment;  // more than none
  void* const memory = std::aligned_alloc(alignment, whole);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void give_back_to_heap(void* address) {
  if (is_asking || !gpu_heap.give_back(address)) std::free(address);
}

bool open_gpu_heap() {
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess && gpu_heap.open();
}

}  // namespace lockstep
