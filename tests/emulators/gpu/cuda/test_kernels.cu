#include "tests/emulators/gpu/cuda/test_kernels.h"

namespace lockstep::ptx {
namespace {

__device__ void set(uint32_t* flag) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(1) : "memory");
}

__device__ uint32_t read(const uint32_t* flag) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

__device__ void wait_until_set(const uint32_t* flag) {
  while (read(flag) == 0) __nanosleep(40);
}

__global__ void count(uint32_t* to, uint32_t value) {
  to[blockIdx.x * blockDim.x + threadIdx.x] = value + threadIdx.x;
}

__global__ void read_four(uint32_t* to, const uint4* from) {
  const uint4 words = *from;
  to[0] = words.x ^ words.y ^ words.z ^ words.w;
}

__global__ void meet(uint32_t* own, const uint32_t* other, uint32_t* to) {
  set(own);
  wait_until_set(other);
  to[0] = 1;
}

__global__ void let_next_begin(uint32_t* value, const uint32_t* begun) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  wait_until_set(begun);
  value[0] = 1;
}

__global__ void begin_early(const uint32_t* value, uint32_t* begun, uint32_t* seen) {
  seen[0] = read(value);
  set(begun);
  asm volatile("griddepcontrol.wait;" ::: "memory");
  seen[1] = read(value);
}

__global__ void use_shared(uint32_t* to) {
  extern __shared__ uint32_t words[];
  words[threadIdx.x] = threadIdx.x;
  __syncthreads();
  to[threadIdx.x] = words[threadIdx.x ^ 1U];
}

__global__ void __launch_bounds__(64) count_bounded(uint32_t* to) {
  to[threadIdx.x] = threadIdx.x;
}

__global__ void count_rows(uint32_t* to) {
  to[blockIdx.y] = blockIdx.y;
}

}  // namespace

void launch_count(cudaStream_t stream, uint32_t* to, uint32_t value, unsigned threads) {
  count<<<threads / 32, 32, 0, stream>>>(to, value);
}

void launch_read_four(cudaStream_t stream, uint32_t* to, const uint32_t* from) {
  read_four<<<1, 1, 0, stream>>>(to, reinterpret_cast<const uint4*>(from));
}

void launch_meet(cudaStream_t stream, uint32_t* own, const uint32_t* other, uint32_t* to) {
  meet<<<1, 1, 0, stream>>>(own, other, to);
}

void launch_early_pair(cudaStream_t stream, uint32_t* value, uint32_t* begun, uint32_t* seen) {
  let_next_begin<<<1, 1, 0, stream>>>(value, begun);
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, begin_early, value, begun, seen);
}

cudaError_t launch_with_shared(cudaStream_t stream, uint32_t* to, unsigned bytes, bool ask) {
  if (ask) {
    const cudaError_t allowed = cudaFuncSetAttribute(
        use_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (allowed != cudaSuccess) return allowed;
  }
  use_shared<<<1, 32, bytes, stream>>>(to);
  return cudaGetLastError();
}

cudaError_t launch_bounded(cudaStream_t stream, uint32_t* to, unsigned threads) {
  count_bounded<<<1, threads, 0, stream>>>(to);
  return cudaGetLastError();
}

cudaError_t launch_rows(cudaStream_t stream, uint32_t* to, unsigned rows) {
  count_rows<<<dim3(1, rows), 1, 0, stream>>>(to);
  return cudaGetLastError();
}

}  // namespace lockstep::ptx
