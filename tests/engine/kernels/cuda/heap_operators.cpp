// operator new and delete of a program whose heap GPUs reach (cuda_test_memory.h).
#include <new>

#include "tests/engine/kernels/cuda/cuda_test_memory.h"

// The library's other forms call these.
void* operator new(size_t bytes) {
  return lockstep::take_from_heap(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return lockstep::take_from_heap(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* address) noexcept {
  lockstep::give_back_to_heap(address);
}
void operator delete(void* address, size_t) noexcept {
  lockstep::give_back_to_heap(address);
}
void operator delete(void* address, std::align_val_t) noexcept {
  lockstep::give_back_to_heap(address);
}
void operator delete(void* address, size_t, std::align_val_t) noexcept {
  lockstep::give_back_to_heap(address);
}
