// What follows a part of a pass's tokens, where that is launched by itself.
#pragma once

#include <cstddef>

#include "engine/kernels/gpu_product.h"

namespace lockstep {

// The norm of the tokens from this one on. Which row a token is given stays.
inline GpuNormOutput norm_from(GpuNormOutput norm, size_t token) {
  const auto advance = [token](auto*& array, size_t stride) {
    if (array != nullptr) array += token * stride;
  };
  advance(norm.row_of_token, 1);
  if (norm.row_of_token != nullptr) return norm;
  advance(norm.rows.bf16, norm.rows.bf16_stride);
  advance(norm.rows.f32, norm.rows.f32_stride);
  advance(norm.chunk_sums, norm.chunk_stride);
  return norm;
}

}  // namespace lockstep
