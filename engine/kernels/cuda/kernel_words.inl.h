// Small words that several kernels use. Included after gpu_code.h.
#pragma once

#include <cstddef>
#include <utility>

#include "engine/kernels/gpu_rows.h"
#include "engine/kernels/gpu_tile.h"
#include "engine/tensor/format.h"

namespace lockstep {
namespace {

// The sum over lanes up to `distance` apart and twice that, added pairwise, the farthest first:
// over all 32 from 16 on. Each of them has it; called by all lanes.
GPU_FUNCTION float add_lanes(float value, unsigned distance) {
  for (; distance > 0; distance /= 2) value += from_lane_across(value, distance);
  return value;
}

// SiLU of `y`, times `up`.
GPU_FUNCTION float gated_by_silu(float y, float up) {
  return multiply(y / (1 + exponential_of(-y)), up);
}

// The results of the pass at hand (GpuBatchCounts::result_offset).
template <typename Result>
GPU_FUNCTION Result* behind(Result* first, const uint32_t* result_offset) {
  if (result_offset == nullptr) return first;
  return reinterpret_cast<Result*>(reinterpret_cast<std::byte*>(first) + *result_offset);
}

// A logit as a number that is greater the likelier it is, and never 0, which is no entry's. One
// that is no number counts as the least there is.
GPU_FUNCTION uint32_t likelihood_key(float logit) {
  constexpr uint32_t kSign = 0x80000000U;
  constexpr uint32_t kInfinity = 0x7F800000U;
  uint32_t bits = float_to_bits(logit);
  if ((bits & ~kSign) > kInfinity) bits = kSign | kInfinity;
  if (bits == kSign) bits = 0;
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

// How kernels write rows of activations.
GPU_FUNCTION void store_row(const GpuRows& rows, size_t row, size_t column, float value) {
  if (rows.bf16 != nullptr) rows.bf16[row * rows.bf16_stride + column] = to_bf16(value);
  if (rows.f32 != nullptr) rows.f32[row * rows.f32_stride + column] = value;
}
GPU_FUNCTION void store_padding(const GpuRows& rows, size_t row, size_t column) {
  if (rows.bf16 != nullptr) rows.bf16[row * rows.bf16_stride + column] = 0;
}

// Kernels are templates of the weights' format, and launched by what a matrix says at run time.
// Calls work.operator()<kFormat>() of the format that it is, one with has_gpu_kernels().
template <typename Work>
void with_format(Format format, const Work& work) {
  const auto call = [&]<Format kFormat>() {
    if constexpr (has_gpu_kernels(kFormat)) {
      if (format == kFormat) work.template operator()<kFormat>();
    }
  };
  [&]<size_t... kIndices>(std::index_sequence<kIndices...>) {
    (call.template operator()<static_cast<Format>(kIndices)>(), ...);
  }
  (std::make_index_sequence<kFormatCount>());
}

}  // namespace
}  // namespace lockstep
