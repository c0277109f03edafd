// The heap of cuda_test_memory.h for emulated GPUs: each block that the program allocates is an
// allocation of its own, of the very bytes asked for, so that a kernel which goes over the end of a
// vector by a byte is found.
#include <cstddef>
#include <cstdlib>
#include <new>

#include "tests/emulators/gpu/cuda/machine.h"
#include "tests/engine/kernels/cuda/cuda_test_memory.h"

namespace lockstep {
namespace {

// The least alignment of a block, and the space before the block that holds its header.
constexpr size_t kAlignment = 64;

struct Header {
  void* memory;    // what malloc gave
  bool is_shared;  // GPUs know of it
};
static_assert(sizeof(Header) <= kAlignment);

constinit bool is_open = false;

ptx::Allocations& gpus() {
  return ptx::Machine::get().allocations();
}

}  // namespace

void* take_from_heap(size_t bytes, size_t alignment) {
  if (alignment < kAlignment) alignment = kAlignment;
  void* const memory =
      std::aligned_alloc(alignment, (bytes + 2 * alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  auto* const block = static_cast<std::byte*>(memory) + alignment;
  const bool is_shared = is_open && bytes > 0;
  new (block - kAlignment) Header{memory, is_shared};
  if (is_shared) gpus().add_managed(block, bytes);
  return block;
}

void give_back_to_heap(void* address) {
  if (address == nullptr) return;
  const auto* const header =
      reinterpret_cast<const Header*>(static_cast<std::byte*>(address) - kAlignment);
  if (header->is_shared) gpus().free(address);
  std::free(header->memory);
}

bool open_gpu_heap() {
  gpus();  // which allocates
  is_open = true;
  return true;
}

}  // namespace lockstep
