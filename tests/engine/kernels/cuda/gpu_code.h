// The twin of engine/kernels/cuda/gpu_code.h for the host: a kernel's threads take turns on the
// calling thread, a block after the other. So a kernel's own code, index arithmetic and all, is
// tested without a GPU; what a GPU's memory system and its rounding inside a tile product do is
// not: here a product's sums are formed in double and rounded once.
#pragma once

#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>

#include "engine/base/check.h"
#include "engine/kernels/cuda/gpu_words.h"
#include "engine/tensor/format.h"
#include "tests/engine/kernels/cuda/host_grid.h"
#include "tests/engine/kernels/cuda/launch_stream.h"

#define GPU_FUNCTION inline
#define GPU_KERNEL
#define GPU_KERNEL_OF(threads)
#define GPU_KERNEL_AT_ONCE(threads, blocks)
#define GPU_UNROLL_BY(times)
#define GPU_UNROLL
#define GPU_KEEP_LOOP

namespace lockstep {
namespace {

GPU_FUNCTION unsigned thread_index() {
  return HostGrid::thread();
}
GPU_FUNCTION unsigned thread_count() {
  return HostGrid::shape().threads;
}
GPU_FUNCTION unsigned lane_index() {
  return HostGrid::thread() % kWarpThreads;
}
GPU_FUNCTION unsigned warp_index() {
  return HostGrid::thread() / kWarpThreads;
}
GPU_FUNCTION unsigned block_column() {
  return HostGrid::block_column();
}
GPU_FUNCTION unsigned block_row() {
  return HostGrid::block_row();
}
GPU_FUNCTION unsigned block_columns() {
  return HostGrid::shape().columns;
}
GPU_FUNCTION unsigned block_rows() {
  return HostGrid::shape().rows;
}
GPU_FUNCTION void wait_for_launches() {
  HostGrid::wait_for_launches();
}
GPU_FUNCTION void follow_launches() {
  HostGrid::wait_for_launches();
  HostGrid::let_next_launch_begin();
}
GPU_FUNCTION std::byte* shared_memory() {
  return HostGrid::shared_memory();
}
GPU_FUNCTION void meet_block() {
  HostGrid::meet_block();
}
GPU_FUNCTION void meet_warp() {
  HostGrid::meet_warp();
}

template <typename T>
GPU_FUNCTION T from_lane(T value, unsigned lane) {
  static_assert(sizeof(T) == sizeof(uint32_t));
  const auto& words = HostGrid::exchange({std::bit_cast<uint32_t>(value)});
  return std::bit_cast<T>(words[lane % kWarpThreads][0]);
}
template <typename T>
GPU_FUNCTION T from_lane_across(T value, unsigned distance) {
  return from_lane(value, lane_index() ^ distance);
}
GPU_FUNCTION uint32_t lanes_where(bool value) {
  uint32_t lanes = 0;
  const auto& words = HostGrid::exchange({value ? 1U : 0U});
  for (unsigned lane = 0; lane < kWarpThreads; ++lane) lanes |= words[lane][0] << lane;
  return lanes;
}
GPU_FUNCTION uint32_t count_bits(uint32_t word) {
  return static_cast<uint32_t>(std::popcount(word));
}
GPU_FUNCTION uint32_t sum_of_lanes(uint32_t value) {
  uint32_t sum = 0;
  for (const HostGrid::Words& lane : HostGrid::exchange({value})) sum += lane[0];
  return sum;
}

GPU_FUNCTION float from_bf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16U);
}

GPU_FUNCTION float from_half(uint16_t bits) {
  return half_to_float(bits);
}

// The elements of A and of B as the lanes hold them.
template <float (*kNumber)(uint16_t)>
GPU_FUNCTION void read_tiles(const HostGrid::WarpWords& words, HostGrid::TileNumbers& numbers) {
  for (unsigned lane = 0; lane < kWarpThreads; ++lane) {
    for (unsigned word = 0; word < 6; ++word) {
      const bool of_a = word < 4;
      auto& row = of_a ? numbers.a[lane / 4 + word % 2 * 8] : numbers.b[lane / 4];
      const unsigned column = lane % 4 * 2 + (of_a ? word / 2 : word - 4) * 8;
      row[column] = static_cast<double>(kNumber(static_cast<uint16_t>(words[lane][word])));
      row[column + 1] =
          static_cast<double>(kNumber(static_cast<uint16_t>(words[lane][word] >> 16U)));
    }
  }
}

template <float (*kNumber)(uint16_t)>
GPU_FUNCTION void multiply_tile_of(float (&sums)[4], const uint32_t (&a)[4],
                                   const uint32_t (&b)[2]) {
  const auto& numbers =
      HostGrid::exchange_tiles({a[0], a[1], a[2], a[3], b[0], b[1]}, &read_tiles<kNumber>);
  const unsigned row = lane_index() / 4;
  const unsigned column = lane_index() % 4 * 2;
  double exact[4] = {sums[0], sums[1], sums[2], sums[3]};
  for (unsigned k = 0; k < 16; ++k) {
    for (unsigned index = 0; index < 4; ++index) {
      exact[index] += numbers.a[row + index / 2 * 8][k] * numbers.b[column + index % 2][k];
    }
  }
  for (unsigned index = 0; index < 4; ++index) sums[index] = static_cast<float>(exact[index]);
}
GPU_FUNCTION void multiply_tile(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  multiply_tile_of<from_bf16>(sums, a, b);
}
GPU_FUNCTION void multiply_tile_from(const float (&begin)[4], const uint32_t (&a)[4],
                                     const uint32_t (&b)[2], float (&sums)[4]) {
  std::memcpy(sums, begin, sizeof(sums));
  multiply_tile(sums, a, b);
}
GPU_FUNCTION void multiply_half_tile(float (&sums)[4], const uint32_t (&a)[4],
                                     const uint32_t (&b)[2]) {
  multiply_tile_of<from_half>(sums, a, b);
}

// At once: that a GPU may be later is not shown.
constexpr bool kHasGroupProducts = true;
constexpr bool kMayLackGroupProducts = true;
GPU_FUNCTION void begin_group_products() {
  HostGrid::meet_warp();
}
GPU_FUNCTION void close_group_products() {
  HostGrid::meet_warp();
}
template <unsigned kOpen, unsigned kGroups>
GPU_FUNCTION void wait_for_group_products(float (&)[kGroups][4]) {
  HostGrid::meet_warp();
}
GPU_FUNCTION void show_to_group_products() {}
using GroupMatrix = const std::byte*;
template <unsigned kGroups>
GPU_FUNCTION GroupMatrix group_matrix(const std::byte* b) {
  return b;
}
GPU_FUNCTION GroupMatrix group_matrix_behind(GroupMatrix matrix, unsigned bytes) {
  return matrix + bytes;
}
template <unsigned kGroups, bool kAdds>
GPU_FUNCTION void multiply_group_tile(float (&sums)[kGroups][4], const uint32_t (&a)[4],
                                      GroupMatrix b) {
  constexpr unsigned kEightBytes = kGroups * 128;
  for (unsigned group = 0; group < kGroups; ++group) {
    // As lanes would hold it.
    const std::byte* const own = b + (group * 8 + lane_index() / 4) * 16 + lane_index() % 4 * 4;
    uint32_t words[2];
    std::memcpy(&words[0], own, sizeof(uint32_t));
    std::memcpy(&words[1], own + kEightBytes, sizeof(uint32_t));
    if (!kAdds) std::memset(sums[group], 0, sizeof(sums[group]));
    multiply_tile(sums[group], a, words);
  }
}

GPU_FUNCTION Words4 stream_16(const void* address) {
  HostGrid::check_access(address, 16);
  Words4 value;
  std::memcpy(&value, address, sizeof(value));
  return value;
}

GPU_FUNCTION Words2 stream_8(const void* address) {
  HostGrid::check_access(address, 8);
  Words2 value;
  std::memcpy(&value, address, sizeof(value));
  return value;
}

GPU_FUNCTION void begin_copy_16(std::byte* shared, const std::byte* source) {
  HostGrid::begin_copy(shared, source, 16);
}
GPU_FUNCTION void begin_copy_8(std::byte* shared, const std::byte* source) {
  HostGrid::begin_copy(shared, source, 8);
}
GPU_FUNCTION void begin_copy_4(std::byte* shared, const std::byte* source) {
  HostGrid::begin_copy(shared, source, 4);
}
GPU_FUNCTION void close_copies() {
  HostGrid::close_copies();
}
template <unsigned kGroups>
GPU_FUNCTION void wait_for_copies() {
  HostGrid::wait_for_copies(kGroups);
}

GPU_FUNCTION Words4 load_16(const void* address) {
  return stream_16(address);
}
GPU_FUNCTION Words2 load_8(const void* address) {
  return stream_8(address);
}
GPU_FUNCTION uint32_t load_4(const void* address) {
  HostGrid::check_access(address, 4);
  uint32_t value;
  std::memcpy(&value, address, sizeof(value));
  return value;
}
GPU_FUNCTION uint32_t load_of_batch(const uint32_t* address) {
  return *address;
}
GPU_FUNCTION Words4 load_16_of_batch(const void* address) {
  Words4 value;
  std::memcpy(&value, address, sizeof(value));
  return value;
}

template <typename T>
GPU_FUNCTION void keep(T&) {}

GPU_FUNCTION uint32_t mask_and_set(uint32_t word, uint32_t mask, uint32_t bits) {
  return (word & mask) | bits;
}

// The bytes that the lower four nibbles of `selectors` name, of `lower` (0 to 3) and `upper` (4 to
// 7): the first nibble's lowest. None is above 7.
GPU_FUNCTION uint32_t pick_bytes(uint32_t lower, uint32_t upper, uint32_t selectors) {
  uint32_t picked = 0;
  for (unsigned byte = 0; byte < 4; ++byte) {
    const uint32_t selector = selectors >> 4 * byte & 15U;
    CHECK(selector < 8, "byte {} of eight", selector);
    picked |= ((selector < 4 ? lower : upper) >> 8 * (selector % 4) & 255U) << 8 * byte;
  }
  return picked;
}

GPU_FUNCTION uint32_t bf16_pair(float lower, float upper) {
  return float_to_bf16(lower) | static_cast<uint32_t>(float_to_bf16(upper)) << 16U;
}
GPU_FUNCTION uint32_t add_bf16_pairs(uint32_t x, uint32_t y) {
  const auto half = [](uint32_t pair, unsigned index) {
    return from_bf16(static_cast<uint16_t>(pair >> (16 * index)));
  };
  return bf16_pair(half(x, 0) + half(y, 0), half(x, 1) + half(y, 1));
}

GPU_FUNCTION void store_16(void* address, const Words4& value) {
  HostGrid::check_access(address, 16);
  std::memcpy(address, &value, sizeof(value));
}
GPU_FUNCTION void store_8(void* address, const Words2& value) {
  HostGrid::check_access(address, 8);
  std::memcpy(address, &value, sizeof(value));
}
GPU_FUNCTION void write_16(void* address, const Words4& value) {
  store_16(address, value);
}
GPU_FUNCTION void write_8(void* address, const Words2& value) {
  store_8(address, value);
}

GPU_FUNCTION void store_release(uint32_t* flag, uint32_t value) {
  HostGrid::check_access(flag, sizeof(*flag));
  std::atomic_ref(*flag).store(value, std::memory_order_release);
}
GPU_FUNCTION uint32_t load_acquire(const uint32_t* flag) {
  HostGrid::check_access(flag, sizeof(*flag));
  HostGrid::check_flag();
  return std::atomic_ref(*const_cast<uint32_t*>(flag)).load(std::memory_order_acquire);
}
GPU_FUNCTION uint32_t add_acquire_release(uint32_t* counter, uint32_t value) {
  HostGrid::check_access(counter, sizeof(*counter));
  return std::atomic_ref(*counter).fetch_add(value, std::memory_order_acq_rel);
}
GPU_FUNCTION uint64_t nanoseconds() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                               std::chrono::nanoseconds(1));
}
GPU_FUNCTION void rest() {
  HostGrid::rest();
}

GPU_FUNCTION uint16_t to_bf16(float value) {
  return float_to_bf16(value);
}
GPU_FUNCTION uint16_t to_half(float value) {
  return float_to_half(value);
}
GPU_FUNCTION float bits_to_float(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
GPU_FUNCTION uint32_t float_to_bits(float value) {
  return std::bit_cast<uint32_t>(value);
}
GPU_FUNCTION float multiply_add(float x, float y, float z) {
  return std::fma(x, y, z);
}
GPU_FUNCTION float multiply(float x, float y) {
  return x * y;
}
GPU_FUNCTION float exponential_of(float x) {
  return std::exp(x);
}
GPU_FUNCTION float power_of_2(float x) {
  return std::exp2(x);
}
GPU_FUNCTION float exponential_less_one(float x) {
  return std::expm1(x);
}
GPU_FUNCTION float error_complement_of(float x) {
  return std::erfc(x);
}
GPU_FUNCTION float tangent_of(float x) {
  return std::tanh(x);
}
GPU_FUNCTION float logarithm_above_one(float x) {
  return std::log1p(x);
}
GPU_FUNCTION double logarithm_of(double x) {
  return std::log(x);
}
GPU_FUNCTION float root(float x) {
  return std::sqrt(x);
}
GPU_FUNCTION float greater(float x, float y) {
  return std::fmax(x, y);
}
GPU_FUNCTION float lesser(float x, float y) {
  return std::fmin(x, y);
}
GPU_FUNCTION float magnitude(float x) {
  return std::fabs(x);
}
GPU_FUNCTION float nearest_integer(float x) {
  return std::nearbyint(x);
}
GPU_FUNCTION double cosine_of(double angle) {
  return std::cos(angle);
}
GPU_FUNCTION double sine_of(double angle) {
  return std::sin(angle);
}

using Grid = HostGrid::Shape;

// As few as let blocks take rows in turns.
inline unsigned multiprocessor_count() {
  return 1;
}
// Both ways give the same bits: tests try each.
inline bool has_group_products() {
  return HostGrid::has_group_products();
}
inline size_t shared_bytes_most() {
  return 227 * 1024;
}

// `stream`: a LaunchStream, or null: at once.
template <typename... Parameters, typename... Arguments>
void launch(void* stream, const Grid& grid, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  if (grid.columns == 0 || grid.rows == 0) return;
  std::tuple<Parameters...> copies(std::forward<Arguments>(arguments)...);
  auto begin = [grid, run = [kernel, copies = std::move(copies)] { std::apply(kernel, copies); }] {
    auto begun = std::make_unique<HostGrid>(grid, run);
    return [begun = std::move(begun)] { begun->finish(); };
  };
  if (stream == nullptr) return begin()();
  static_cast<LaunchStream*>(stream)->enqueue_kernel(std::move(begin));
}

}  // namespace
}  // namespace lockstep
