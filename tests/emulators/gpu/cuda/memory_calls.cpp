// The emulated CUDA runtime: memory.
#include <cstring>

#include "tests/emulators/gpu/cuda/runtime.h"

using namespace lockstep::ptx;

namespace {

uint64_t number(const void* address) {
  return reinterpret_cast<uint64_t>(address);
}

// The host's memory behind bytes that a copy reads or writes; null: none of it holds them.
std::byte* place_of(const void* address, size_t bytes, std::string& why) {
  const auto found = Machine::get().allocations().find(kHost, number(address), bytes, why);
  return found ? Allocations::place(*found, number(address)) : nullptr;
}

}  // namespace

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (const cudaError_t state = state_of_current(); state != cudaSuccess) return told(state);
  if (const cudaError_t no = refuse_in_captures("cudaMalloc"); no != cudaSuccess) return no;
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  *memory = Machine::get().allocations().allocate(current_gpu(), bytes);
  return *memory == nullptr ? told(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaMallocManaged(void** memory, size_t bytes, unsigned int flags) {
  if (const cudaError_t state = state_of_current(); state != cudaSuccess) return told(state);
  if (const cudaError_t no = refuse_in_captures("cudaMallocManaged"); no != cudaSuccess) return no;
  if (bytes == 0 || flags != cudaMemAttachGlobal) return told(cudaErrorInvalidValue);
  *memory = Machine::get().allocations().allocate_managed(bytes);
  return cudaSuccess;
}

// Waits for all that the GPU has to do, as CUDA does.
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  if (const cudaError_t state = state_of_current(); state != cudaSuccess) return told(state);
  if (const cudaError_t no = refuse_in_captures("cudaFree"); no != cudaSuccess) return no;
  Machine& machine = Machine::get();
  const auto found = machine.allocations().find(number(memory));
  machine.gpu(found && found->gpu != kHost ? found->gpu : current_gpu()).wait_for_all();
  if (machine.allocations().free(memory)) return cudaSuccess;
  return told(cudaErrorInvalidValue, "cudaFree: {} is no allocation", memory);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  if (const cudaError_t state = state_of_current(); state != cudaSuccess) return told(state);
  *free = Machine::get().allocations().free_bytes(current_gpu());
  *total = Machine::get().allocations().total_bytes();
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned int flags) {
  if (const cudaError_t state = state_of_current(); state != cudaSuccess) return told(state);
  if (const cudaError_t no = refuse_in_captures("cudaHostRegister"); no != cudaSuccess) return no;
  if (memory == nullptr || bytes == 0) return told(cudaErrorInvalidValue);
  if ((flags & cudaHostRegisterPortable) == 0) {
    return told(cudaErrorInvalidValue, "cudaHostRegister: not portable: other GPUs may not use it");
  }
  switch (Machine::get().allocations().register_host(memory, bytes)) {
    case Allocations::Registration::kDone:
      return cudaSuccess;
    case Allocations::Registration::kAlready:
      return told(cudaErrorHostMemoryAlreadyRegistered);
    case Allocations::Registration::kNotThere:
      break;
  }
  return told(cudaErrorInvalidValue);
}

cudaError_t cudaHostUnregister(void* memory) {
  if (const cudaError_t state = state_of_current(); state != cudaSuccess) return told(state);
  return Machine::get().allocations().unregister_host(memory)
             ? cudaSuccess
             : told(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned int flags) {
  if (const cudaError_t state = state_of_current(); state != cudaSuccess) return told(state);
  const auto found = Machine::get().allocations().find(number(host));
  if (flags != 0 || !found || found->kind != Allocation::Kind::kRegistered) {
    return told(cudaErrorInvalidValue);
  }
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (kind != cudaMemcpyDefault) {
    return told(cudaErrorInvalidValue, "cudaMemcpyAsync: only cudaMemcpyDefault is emulated");
  }
  std::string why;
  if (place_of(to, bytes, why) == nullptr || place_of(from, bytes, why) == nullptr) {
    return told(cudaErrorInvalidValue, "cudaMemcpyAsync: {}", why);
  }
  Step step;
  step.task = [to, from, bytes] {
    std::string reason;
    std::byte* const target = place_of(to, bytes, reason);
    const std::byte* const source = place_of(from, bytes, reason);
    if (target == nullptr || source == nullptr) return "a copy: " + reason;
    std::memmove(target, source, bytes);
    return std::string();
  };
  return enqueue(stream_of(stream), std::move(step));
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  std::string why;
  if (place_of(to, bytes, why) == nullptr) {
    return told(cudaErrorInvalidValue, "cudaMemsetAsync: {}", why);
  }
  if (stream_of(stream).gpu.index() != current_gpu()) {
    return told(cudaErrorInvalidResourceHandle, "cudaMemsetAsync on a stream of another GPU");
  }
  Step step;
  step.task = [to, value, bytes] {
    std::string reason;
    std::byte* const target = place_of(to, bytes, reason);
    if (target == nullptr) return "a memset: " + reason;
    std::memset(target, value, bytes);
    return std::string();
  };
  return enqueue(stream_of(stream), std::move(step));
}
