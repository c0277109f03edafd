// The words that kernels are written in, for nvcc: the threads of a block, what they exchange, and
// the instructions that C++ has no word for. The kernels themselves (*.inl.h) are included after
// this file, or after its twin of the tests, whose threads run on the host; so everything but this
// file is tested without a GPU.
//
// Include in .cu files alone. Everything is in an anonymous namespace, as the kernels are.
#pragma once

// fmt 9 takes nvcc for a compiler without constexpr functions, which are half of its own.
#define FMT_USE_CONSTEXPR 1

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "engine/base/check.h"
#include "engine/kernels/cuda/gpu_words.h"
#include "engine/kernels/cuda/launch_errors.h"
#include "engine/kernels/cuda/launch_overlap.h"
#include "engine/kernels/cuda/launch_shared_memory.h"

#define GPU_FUNCTION __device__ __forceinline__
#define GPU_KERNEL __global__
// A kernel whose blocks have at most so many threads, which may so have more registers; or no more
// registers than let so many blocks be on a multiprocessor at once.
#define GPU_KERNEL_OF(threads) __global__ __launch_bounds__(threads)
#define GPU_KERNEL_AT_ONCE(threads, blocks) __global__ __launch_bounds__(threads, blocks)
// Before a loop: so many turns at once, so that the loads of several are under way.
#define GPU_PRAGMA(words) _Pragma(#words)
#define GPU_UNROLL_BY(times) GPU_PRAGMA(unroll times)
// Before a loop whose turns are to be laid out one after the other: what they index stays in
// registers.
#define GPU_UNROLL _Pragma("unroll")
// Before one whose turns are not: registers would not do for several at once.
#define GPU_KEEP_LOOP _Pragma("unroll 1")

namespace lockstep {
namespace {

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

// Until all launches before this one on the stream are done; what they have written is seen then.
// Every thread of every kernel calls it before it ends, and before it touches what any other launch
// may touch: what no launch of the pass writes may be asked for before (launch_overlap.h).
GPU_FUNCTION void wait_for_launches() {
  grid_dependency_wait();
}
// The same, and lets the next launch's blocks begin where there is capacity: in all kernels but
// those that wait for other GPUs.
GPU_FUNCTION void follow_launches() {
  grid_dependency_wait();
  grid_dependents_launch();
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
// Which of the warp's lanes bring true, one bit for each; called by all of them. And how many of a
// word's bits are set.
GPU_FUNCTION uint32_t lanes_where(bool value) {
  return __ballot_sync(0xFFFFFFFFU, value);
}
GPU_FUNCTION uint32_t count_bits(uint32_t word) {
  return static_cast<uint32_t>(__popc(word));
}
// The sum over all lanes of the warp, which all have it.
GPU_FUNCTION uint32_t sum_of_lanes(uint32_t value) {
  return __reduce_add_sync(0xFFFFFFFFU, value);
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

// Likewise sums = begin + A * B.
GPU_FUNCTION void multiply_tile_from(const float (&begin)[4], const uint32_t (&a)[4],
                                     const uint32_t (&b)[2], float (&sums)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(begin[0]),
        "f"(begin[1]), "f"(begin[2]), "f"(begin[3]));
}

// The same of f16, as they stand.
GPU_FUNCTION void multiply_half_tile(float (&sums)[4], const uint32_t (&a)[4],
                                     const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Products of warp groups, which only Hopper has (wgmma): four warps that follow one another, each
// with a panel of its own, multiply it with the same kGroups * 8 tokens in shared memory, and go on
// while they do so. A product is begun after begin_group_products(), which makes registers that
// were written before be seen, and belongs to the thread's next close_group_products(); with all
// but the last kOpen of these waited for, its `sums` may be read. Until then neither they nor `a`,
// nor what `b` is, may be touched. sums[group] += A * B of 8 tokens, or (without kAdds) = A *
// B, as multiply_tile() has them. In `b` lie for columns 0 to 7 the tokens' 16 bytes each, then for
// columns 8 to 15.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kHasGroupProducts = true;
constexpr bool kMayLackGroupProducts = false;
GPU_FUNCTION void begin_group_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
GPU_FUNCTION void close_group_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Lets products that are begun after the block has met see what the thread has stored in shared
// memory.
GPU_FUNCTION void show_to_group_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#define GPU_SUMS(group) \
  "+f"(sums[group][0]), "+f"(sums[group][1]), "+f"(sums[group][2]), "+f"(sums[group][3])
template <unsigned kOpen, unsigned kGroups>
GPU_FUNCTION void wait_for_group_products(float (&sums)[kGroups][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kOpen) : "memory");
  // The compiler reads the sums after this point alone.
  GPU_UNROLL
  for (unsigned group = 0; group < kGroups; ++group) asm volatile("" : GPU_SUMS(group));
}
// The place of such a matrix of B: matrices of 8 tokens by 8 columns lie side by side, those of the
// next 8 columns behind all tokens', those of the next 8 tokens 128 bytes further on, which the
// upper half of 64 bits says.
using GroupMatrix = uint32_t;
template <unsigned kGroups>
GPU_FUNCTION GroupMatrix group_matrix(const std::byte* b) {
  return (kGroups * 128 / 16) << 16U |
         (static_cast<uint32_t>(__cvta_generic_to_shared(b)) & 0x3FFFFU) >> 4U;
}
// The one so many bytes behind it.
GPU_FUNCTION GroupMatrix group_matrix_behind(GroupMatrix matrix, unsigned bytes) {
  return matrix + bytes / 16;
}
template <unsigned kGroups, bool kAdds>
GPU_FUNCTION void multiply_group_tile(float (&sums)[kGroups][4], const uint32_t (&a)[4],
                                      GroupMatrix b) {
  static_assert(kGroups == 8);
  asm volatile(
      "{ .reg .b64 place; mov.b64 place, {%36, %38};"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, {%32, %33, %34, %35}, place, %37, 1, 1, 0; }"
      : GPU_SUMS(0), GPU_SUMS(1), GPU_SUMS(2), GPU_SUMS(3), GPU_SUMS(4), GPU_SUMS(5), GPU_SUMS(6),
        GPU_SUMS(7)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kAdds), "r"(128 / 16));
}
#undef GPU_SUMS
#else
constexpr bool kHasGroupProducts = false;
constexpr bool kMayLackGroupProducts = true;
GPU_FUNCTION void begin_group_products() {}
GPU_FUNCTION void close_group_products() {}
template <unsigned kOpen, unsigned kGroups>
GPU_FUNCTION void wait_for_group_products(float (&)[kGroups][4]) {}
GPU_FUNCTION void show_to_group_products() {}
using GroupMatrix = uint32_t;
template <unsigned kGroups>
GPU_FUNCTION GroupMatrix group_matrix(const std::byte*) {
  return 0;
}
GPU_FUNCTION GroupMatrix group_matrix_behind(GroupMatrix matrix, unsigned) {
  return matrix;
}
template <unsigned kGroups, bool kAdds>
GPU_FUNCTION void multiply_group_tile(float (&)[kGroups][4], const uint32_t (&)[4], GroupMatrix) {}
#endif

// 16 or 8 bytes of weights, which are read once: they take no place in the first cache.
GPU_FUNCTION Words4 stream_16(const void* address) {
  Words4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.words[0]), "=r"(value.words[1]), "=r"(value.words[2]),
                 "=r"(value.words[3])
               : "l"(address));
  return value;
}

GPU_FUNCTION Words2 stream_8(const void* address) {
  Words2 value;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(value.words[0]), "=r"(value.words[1])
               : "l"(address));
  return value;
}

// Copies of weights into shared memory that go on while the thread computes. A thread closes what
// it has begun into groups; with all but the last kGroups of them waited for, what they copied is
// seen by that thread, and after a barrier by the others. Both addresses are aligned to the size.
GPU_FUNCTION void begin_copy_16(std::byte* shared, const std::byte* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(source)
               : "memory");
}
GPU_FUNCTION void begin_copy_8(std::byte* shared, const std::byte* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(source)
               : "memory");
}
GPU_FUNCTION void begin_copy_4(std::byte* shared, const std::byte* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(source)
               : "memory");
}
GPU_FUNCTION void close_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <unsigned kGroups>
GPU_FUNCTION void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// 16, 8 or 4 bytes that may stay in the caches, from any memory.
GPU_FUNCTION Words4 load_16(const void* address) {
  const uint4 value = *static_cast<const uint4*>(address);
  return {{value.x, value.y, value.z, value.w}};
}
GPU_FUNCTION Words2 load_8(const void* address) {
  const uint2 value = *static_cast<const uint2*>(address);
  return {{value.x, value.y}};
}
GPU_FUNCTION uint32_t load_4(const void* address) {
  return *static_cast<const uint32_t*>(address);
}

// 4 or 16 bytes of the pass's batch, also before the launches before are done: no launch writes it
// (launch_overlap.h). Past the first cache, which keeps what earlier passes' batches had there.
GPU_FUNCTION uint32_t load_of_batch(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(value) : "l"(address));
  return value;
}
GPU_FUNCTION Words4 load_16_of_batch(const void* address) {
  Words4 value;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.words[0]), "=r"(value.words[1]), "=r"(value.words[2]),
                 "=r"(value.words[3])
               : "l"(address));
  return value;
}

// Keeps what was computed in a register: else the compiler may compute it anew wherever it is used.
// An address: of what is no shared memory.
GPU_FUNCTION void keep(const std::byte*& address) {
  asm volatile("" : "+l"(address));
  __builtin_assume(__isGlobal(address));
}
GPU_FUNCTION void keep(unsigned& value) {
  asm volatile("" : "+r"(value));
}

// (word & mask) | bits in one instruction, of which constants by themselves would make two.
GPU_FUNCTION uint32_t mask_and_set(uint32_t word, uint32_t mask, uint32_t bits) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
  return result;
}

// The bytes that the lower four nibbles of `selectors` name, of `lower` (0 to 3) and `upper` (4 to
// 7): the first nibble's lowest. None is above 7.
GPU_FUNCTION uint32_t pick_bytes(uint32_t lower, uint32_t upper, uint32_t selectors) {
  uint32_t picked;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(picked) : "r"(lower), "r"(upper), "r"(selectors));
  return picked;
}

// Two bf16 in a word: `lower` in its lower half. The sums of two such words, each half by itself;
// both round to nearest even.
GPU_FUNCTION uint32_t bf16_pair(float lower, float upper) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(upper), "f"(lower));
  return pair;
}
GPU_FUNCTION uint32_t add_bf16_pairs(uint32_t x, uint32_t y) {
  uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(0x3F803F80U), "r"(y));
  return sum;
}

GPU_FUNCTION void store_16(void* address, const Words4& value) {
  *static_cast<uint4*>(address) =
      make_uint4(value.words[0], value.words[1], value.words[2], value.words[3]);
}
GPU_FUNCTION void store_8(void* address, const Words2& value) {
  *static_cast<uint2*>(address) = make_uint2(value.words[0], value.words[1]);
}
// The same to the GPU's own memory, in one instruction: of a store whose memory it does not know
// the compiler may make one for each word, and then each writes a part of every sector.
GPU_FUNCTION void write_16(void* address, const Words4& value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(value.words[0]),
               "r"(value.words[1]), "r"(value.words[2]), "r"(value.words[3])
               : "memory");
}
GPU_FUNCTION void write_8(void* address, const Words2& value) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(value.words[0]),
               "r"(value.words[1])
               : "memory");
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
// Adds to a counter of this GPU's blocks, and returns what it was before. What a block has written
// before, all of its threads once they have met, is seen by the blocks that add to it later.
GPU_FUNCTION uint32_t add_acquire_release(uint32_t* counter, uint32_t value) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(value)
               : "memory");
  return before;
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
// A product that is rounded by itself, whatever is added to it.
GPU_FUNCTION float multiply(float x, float y) {
  return __fmul_rn(x, y);
}
GPU_FUNCTION float exponential_of(float x) {
  return expf(x);
}
// Off by at most two units of the last place; numbers below the normal ones become 0.
GPU_FUNCTION float power_of_2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
GPU_FUNCTION float exponential_less_one(float x) {
  return expm1f(x);
}
GPU_FUNCTION float error_complement_of(float x) {
  return erfcf(x);
}
GPU_FUNCTION float tangent_of(float x) {
  return tanhf(x);
}
GPU_FUNCTION float logarithm_above_one(float x) {
  return log1pf(x);
}
GPU_FUNCTION double logarithm_of(double x) {
  return log(x);
}
GPU_FUNCTION float root(float x) {
  return __fsqrt_rn(x);
}
GPU_FUNCTION float greater(float x, float y) {
  return fmaxf(x, y);
}
GPU_FUNCTION float lesser(float x, float y) {
  return fminf(x, y);
}
GPU_FUNCTION float magnitude(float x) {
  return fabsf(x);
}
// To nearest even.
GPU_FUNCTION float nearest_integer(float x) {
  return rintf(x);
}
GPU_FUNCTION double cosine_of(double angle) {
  return cos(angle);
}
GPU_FUNCTION double sine_of(double angle) {
  return sin(angle);
}

struct Grid {
  unsigned columns = 1;
  unsigned rows = 1;
  unsigned threads = kWarpThreads;  // of a block; a multiple of a warp's
  size_t shared_bytes = 0;          // of a block
};

// A number of the thread's GPU, asked for once; `otherwise` where CUDA does not say.
template <cudaDeviceAttr kAttribute>
unsigned number_of_gpu(unsigned otherwise) {
  constexpr int kGpus = 64;
  static std::atomic<unsigned> numbers[kGpus] = {};
  int gpu = 0;
  if (cudaGetDevice(&gpu) != cudaSuccess || gpu < 0 || gpu >= kGpus) return otherwise;
  // Threads that ask at the same time get the same answer.
  unsigned number = numbers[gpu].load(std::memory_order_relaxed);
  if (number == 0) {
    int asked = 0;
    if (cudaDeviceGetAttribute(&asked, kAttribute, gpu) != cudaSuccess) cudaGetLastError();
    number = asked > 0 ? static_cast<unsigned>(asked) : otherwise;
    numbers[gpu].store(number, std::memory_order_relaxed);
  }
  return number;
}
inline unsigned multiprocessor_count() {
  return number_of_gpu<cudaDevAttrMultiProcessorCount>(1);
}
// Whether the thread's GPU has products of warp groups.
inline bool has_group_products() {
  return number_of_gpu<cudaDevAttrComputeCapabilityMajor>(1) == 9;
}
// The most shared memory of a block.
inline size_t shared_bytes_most() {
  return number_of_gpu<cudaDevAttrMaxSharedMemoryPerBlockOptin>(kSharedWithoutAsking);
}

static_assert(is_launchs_own(cudaErrorInvalidValue) &&
              is_launchs_own(cudaErrorInvalidConfiguration) &&
              is_launchs_own(cudaErrorInvalidDeviceFunction) &&
              is_launchs_own(cudaErrorNoKernelImageForDevice) &&
              is_launchs_own(cudaErrorLaunchOutOfResources) &&
              is_launchs_own(cudaErrorInvalidResourceHandle));

// Whether a call that waits for the stream reports it as well: of a GPU that is lost, or has gone
// wrong. Else the launch's kernel would be missing without a word.
inline bool stream_tells(cudaError_t error, cudaStream_t stream) {
  if (error == cudaSuccess) return true;
  if (is_launchs_own(error)) return false;
  const cudaError_t state = cudaStreamQuery(stream);
  cudaGetLastError();
  return state != cudaSuccess && state != cudaErrorNotReady;
}

// `stream`: a cudaStream_t. The arguments are copied. A launch that is refused for itself ends the
// process.
template <typename... Parameters, typename... Arguments>
void launch(void* stream, const Grid& grid, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  if (grid.columns == 0 || grid.rows == 0) return;
  const cudaError_t granted =
      shared_memory_grants().ask(reinterpret_cast<const void*>(kernel), grid.shared_bytes);
  CHECK(stream_tells(granted, static_cast<cudaStream_t>(stream)), "{} bytes of shared memory: {}",
        grid.shared_bytes, cudaGetErrorString(granted));
  cudaLaunchAttribute attributes[] = {most_shared_memory(), {}};
  cudaLaunchAttribute& overlap = attributes[1];
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid.columns, grid.rows);
  config.blockDim = dim3(grid.threads);
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  config.numAttrs = launches_overlap(reinterpret_cast<const void*>(kernel)) ? 2 : 1;
  const cudaError_t launched =
      cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
  if (launched != cudaSuccess) cudaGetLastError();
  CHECK(stream_tells(launched, config.stream), "a kernel was not launched: {}",
        cudaGetErrorString(launched));
}

}  // namespace
}  // namespace lockstep
