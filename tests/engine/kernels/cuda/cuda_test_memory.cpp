#include "tests/engine/kernels/cuda/cuda_test_memory.h"

#include <cuda_runtime.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <new>

namespace lockstep {
namespace {

constexpr size_t kHeapBytes = size_t{1} << 30U;  // taken from the machine as they are touched
// The alignment of every block, whose header lies before it in as many bytes.
constexpr size_t kAlignment = 64;

// Blocks of powers of two, which go back to a list of their size. Never destroyed: others' static
// objects are freed after it.
class GpuHeap {
 public:
  void open(std::byte* memory) {
    const std::lock_guard lock(mutex_);
    begin_ = memory;
    unused_ = memory;
  }

  // Null while the heap is not open.
  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (begin_ == nullptr) return nullptr;
    if (bytes > kHeapBytes / 2) throw std::bad_alloc();
    const size_t block_bytes = std::bit_ceil(bytes + kAlignment);
    const auto size_class = static_cast<size_t>(std::countr_zero(block_bytes));
    Block* block = free_[size_class];
    if (block != nullptr) {
      free_[size_class] = block->next;
    } else {
      if (block_bytes > static_cast<size_t>(begin_ + kHeapBytes - unused_)) throw std::bad_alloc();
      block = new (unused_) Block{nullptr, size_class};
      unused_ += block_bytes;
    }
    return reinterpret_cast<std::byte*>(block) + kAlignment;
  }

  // False: it is none of this heap's.
  bool give_back(void* address) {
    const std::lock_guard lock(mutex_);
    auto* const bytes = static_cast<std::byte*>(address);
    const std::less<> before;
    if (begin_ == nullptr || before(bytes, begin_) || !before(bytes, begin_ + kHeapBytes)) {
      return false;
    }
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

  std::mutex mutex_;
  std::byte* begin_ = nullptr;
  std::byte* unused_ = nullptr;
  std::array<Block*, std::bit_width(kHeapBytes)> free_ = {};
};

constinit GpuHeap gpu_heap;

}  // namespace

void* take_from_heap(size_t bytes, size_t alignment) {
  if (alignment <= kAlignment) {
    if (void* const memory = gpu_heap.take(bytes)) return memory;
  }
  // Before the heap is open; and what is aligned to more, no test gives to a kernel.
  const size_t whole = (bytes + alignment) / alignment * alignment;  // more than none
  void* const memory = std::aligned_alloc(alignment, whole);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void give_back_to_heap(void* address) {
  if (!gpu_heap.give_back(address)) std::free(address);
}

// One block of memory, taken once: the runtime's own code allocates too, and must not come here
// while it does.
bool open_gpu_heap() {
  int device = 0;
  int at_once = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&at_once, cudaDevAttrConcurrentManagedAccess, device) != cudaSuccess ||
      at_once == 0) {
    return false;
  }
  void* memory = nullptr;
  if (cudaMallocManaged(&memory, kHeapBytes) != cudaSuccess) return false;
  gpu_heap.open(static_cast<std::byte*>(memory));
  return true;
}

}  // namespace lockstep
