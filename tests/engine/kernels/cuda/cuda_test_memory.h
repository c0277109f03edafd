// The heap of a program whose tests give kernels what they have allocated, on a real GPU.
//
// operator new and delete are this heap's (heap_operators.cpp): from open_gpu_heap() on, what they
// give is memory that the GPU reaches under the same address, and so is what a std::vector holds.
// The GPU does not reach the stack or static storage. The heap is the host's memory, pinned: a GPU
// that others use gives up none of its own, and nothing moves to and fro between the two.
#pragma once

#include <cstddef>

namespace lockstep {

// To be called once, with the GPU in use, before anything that kernels are given is allocated.
// False: CUDA gives no such memory.
bool open_gpu_heap();

// Never null: throws std::bad_alloc. `alignment`: a power of two. Any thread may call.
void* take_from_heap(size_t bytes, size_t alignment);
void give_back_to_heap(void* address);  // or null

}  // namespace lockstep
