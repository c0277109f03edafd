// The norms that read what a sum has become, formed by the threads that have it at hand. Included
// after gpu_code.h.
#pragma once

#include "engine/collectives/cuda/sum_units.inl.h"
#include "engine/collectives/gpu_sum_launch.h"
#include "engine/kernels/gpu_batch.h"

namespace lockstep {
namespace {

// The sum of the chunk whose units eight lanes have, valid in the first of them: in the order of
// gpu_norm_rows(), where 16 lanes have columns i and i + 16 and are added 8, 4, 2 and 1 apart.
GPU_FUNCTION float sum_of_squares(const Unit& unit) {
  float sums[kGpuUnitFloats];
  for (unsigned index = 0; index < kGpuUnitFloats; ++index) {
    const float first = unit.values[index];
    const float second = from_lane_across(first, 4);
    sums[index] = multiply_add(second, second, multiply(first, first));
  }
  for (unsigned distance = 2; distance > 0; distance /= 2) {
    for (float& sum : sums) sum += from_lane_across(sum, distance);
  }
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

// Stores zeros for columns that are not there.
GPU_FUNCTION void store_bf16(uint16_t* to, bool aligned, const Unit& unit) {
  Words2 packed;
  pack(unit, packed);
  if (aligned) {
    store_8(to, packed);
    return;
  }
  for (unsigned index = 0; index < kGpuUnitFloats; ++index) {
    to[index] = static_cast<uint16_t>(packed.words[index / 2] >> (index % 2 * 16));
  }
}

GPU_FUNCTION void store_norm(const GpuNormOutput& norm, const UnitPlace& place, bool aligned,
                             const Unit& unit, float squares) {
  const size_t row = norm.row_of_token == nullptr ? place.row : norm.row_of_token[place.row];
  if (row == kGpuNoRow) return;
  if (place.column % kGpuChunkColumns == 0) {
    norm.chunk_sums[row * norm.chunk_stride + place.column / kGpuChunkColumns] = squares;
  }
  const Unit weight = load_unit(norm.weight, place, aligned);
  Unit normed;
  for (unsigned index = 0; index < kGpuUnitFloats; ++index) {
    normed.values[index] = multiply(unit.values[index], weight.values[index]);
  }
  if (norm.rows.f32 != nullptr) {
    store_unit(norm.rows.f32 + row * norm.rows.f32_stride, place, aligned, normed);
  }
  if (norm.rows.bf16 != nullptr) {
    store_bf16(norm.rows.bf16 + row * norm.rows.bf16_stride + place.column, aligned, normed);
  }
}

// Stores the norm's product of the lane's unit. Called by all lanes of a warp, whose units follow
// one another from a chunk's first on; `present`: the lane has one, as have then all of its
// chunk's.
GPU_FUNCTION void store_norms(const GpuSumLaunch& sum, const UnitPlace& place, const Unit& unit,
                              bool present) {
  if (sum.norm_count == 0) return;
  const float squares = sum_of_squares(unit);
  if (!present) return;
  for (unsigned norm = 0; norm < sum.norm_count; ++norm) {
    store_norm(sum.norms[norm], place, sum.norms_aligned, unit, squares);
  }
}

}  // namespace
}  // namespace lockstep
