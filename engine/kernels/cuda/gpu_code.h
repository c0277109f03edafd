// What kernels are written in, for nvcc: the threads of a block, what they exchange, and the
// instructions that C++ has no word for. The kernels themselves (*.inl.h) are included after this
// file, or after its twin of the tests, whose threads are played by the host; so everything but
// this file is tested without a GPU.
//
// Include in .cu files alone. Everything is in an anonymous namespace, as the kernels are.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#define GPU_FUNCTION __device__ __forceinline__
#define GPU_KERNEL __global__

namespace lockstep {

// Of engine/base/check.h, whose CHECK formats in ways that nvcc cannot follow.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);

namespace {

constexpr unsigned kWarpThreads = 32;

struct alignas(16) Words4 {
  uint32_t words[4];
};

GPU_FUNCTION unsigned thread_index() {
  return threadIdx.x;
}
GPU_FUNCTION unsigned thread_count() {
  return blockDim.x;
}
GPU_FUNCTION unsigned lane_index() {
  return threadIdx.x % kWarpThreads;
}
GPU_FUNCTION unsigned warp_index() {
  return threadIdx.x / kWarpThreads;
}
// Blocks lie in two dimensions.
GPU_FUNCTION unsigned block_column() {
  return blockIdx.x;
}
GPU_FUNCTION unsigned block_row() {
  return blockIdx.y;
}
GPU_FUNCTION unsigned block_columns() {
  return gridDim.x;
}
GPU_FUNCTION unsigned block_rows() {
  return gridDim.y;
}

// The block's shared memory, as many bytes as the launch gives it; 16-byte aligned.
GPU_FUNCTION std::byte* shared_memory() {
  extern __shared__ uint4 bytes[];
  return reinterpret_cast<std::byte*>(bytes);
}

// All threads of the block, or of the warp, meet; what they have written is seen by the others.
GPU_FUNCTION void meet_block() {
  __syncthreads();
}
GPU_FUNCTION void meet_warp() {
  __syncwarp();
}

// The value of the warp's lane `lane_index() ^ distance`, or of lane `lane`. Of 4 bytes; called by
// all lanes.
template <typename T>
GPU_FUNCTION T from_lane_across(T value, unsigned distance) {
  return __shfl_xor_sync(0xFFFFFFFFU, value, static_cast<int>(distance));
}
template <typename T>
GPU_FUNCTION T from_lane(T value, unsigned lane) {
  return __shfl_sync(0xFFFFFFFFU, value, static_cast<int>(lane));
}

// sums += A * B, by the lanes of a warp together. A: 16 rows of 16 bf16, B: 16 rows of 8, sums: 16
// rows of 8 floats. With group = lane / 4 and place = lane % 4, a lane holds, two bf16 in a word,
// the lower column (of B: row) in the lower half:
//   a[0]  row group,     columns 2 * place, + 1      a[1]  row group + 8, the same columns
//   a[2]  row group,     columns 2 * place + 8, + 1  a[3]  row group + 8, the same columns
//   b[0]  rows 2 * place, + 1 of column group        b[1]  rows 2 * place + 8, + 1
//   sums[0], [1]  row group, columns 2 * place, + 1  sums[2], [3]  row group + 8
// (PTX: mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32)
GPU_FUNCTION void multiply_tile(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// 16 or 4 bytes of weights, which are read once: they take no place in the first cache.
GPU_FUNCTION Words4 stream_16(const void* address) {
  Words4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.words[0]), "=r"(value.words[1]), "=r"(value.words[2]),
                 "=r"(value.words[3])
               : "l"(address));
  return value;
}
GPU_FUNCTION uint32_t stream_4(const void* address) {
  uint32_t value;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(value) : "l"(address));
  return value;
}

// Flags that other devices and the host see: what was written before a release is seen after the
// acquire that reads it.
GPU_FUNCTION void store_release(uint32_t* flag, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
GPU_FUNCTION uint32_t load_acquire(const uint32_t* flag) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
GPU_FUNCTION uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}
// Between two looks at a flag.
GPU_FUNCTION void rest() {
  __nanosleep(40);
}

// Numbers. Rounded to nearest even.
GPU_FUNCTION uint16_t to_bf16(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
GPU_FUNCTION float from_bf16(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16U);
}
GPU_FUNCTION uint16_t to_half(float value) {
  return __half_as_ushort(__float2half_rn(value));
}
GPU_FUNCTION float from_half(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}
GPU_FUNCTION float bits_to_float(uint32_t bits) {
  return __uint_as_float(bits);
}
GPU_FUNCTION uint32_t float_to_bits(float value) {
  return __float_as_uint(value);
}
GPU_FUNCTION float multiply_add(float x, float y, float z) {
  return __fmaf_rn(x, y, z);
}
GPU_FUNCTION float exponential_of(float x) {
  return expf(x);
}
GPU_FUNCTION float root(float x) {
  return __fsqrt_rn(x);
}
GPU_FUNCTION float greater(float x, float y) {
  return fmaxf(x, y);
}

struct Grid {
  unsigned columns = 1;
  unsigned rows = 1;
  unsigned threads = kWarpThreads;  // of a block; a multiple of a warp's
  size_t shared_bytes = 0;          // of a block
};

// `stream`: a cudaStream_t. The arguments are copied. A launch that the driver refuses is a bug.
template <typename... Parameters, typename... Arguments>
void launch(void* stream, const Grid& grid, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  if (grid.columns == 0 || grid.rows == 0) return;
  constexpr size_t kSharedWithoutAsking = 48 * 1024;
  if (grid.shared_bytes > kSharedWithoutAsking) {
    const cudaError_t allowed = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                     static_cast<int>(grid.shared_bytes));
    if (allowed != cudaSuccess) {
      check_failed(__FILE__, __LINE__, "allowed == cudaSuccess",
                   std::to_string(grid.shared_bytes) +
                       " bytes of shared memory: " + cudaGetErrorString(allowed));
    }
  }
  kernel<<<dim3(grid.columns, grid.rows), grid.threads, grid.shared_bytes,
           static_cast<cudaStream_t>(stream)>>>(std::forward<Arguments>(arguments)...);
  const cudaError_t launched = cudaGetLastError();
  if (launched != cudaSuccess) {
    check_failed(__FILE__, __LINE__, "launched == cudaSuccess",
                 std::string("a kernel was not launched: ") + cudaGetErrorString(launched));
  }
}

}  // namespace
}  // namespace lockstep
