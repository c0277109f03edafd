// The treatment of a head by a warp (gpu_heads.h). Included after gpu_code.h.
#pragma once

#include "engine/kernels/cuda/kernel_words.inl.h"
#include "engine/kernels/cuda/kv_elements.inl.h"
#include "engine/kernels/gpu_heads.h"

namespace lockstep {
namespace {

GPU_FUNCTION float norm_factor(const float* head, unsigned dimensions, float epsilon) {
  float sum = 0;
  for (unsigned i = lane_index(); i < dimensions; i += kWarpThreads) {
    sum = multiply_add(head[i], head[i], sum);
  }
  sum = add_lanes(sum, kWarpThreads / 2);
  return 1.0F / root(sum / static_cast<float>(dimensions) + epsilon);
}

GPU_FUNCTION void rotate_head(const GpuHeads& heads, unsigned token, float* head) {
  const unsigned half = heads.rotary_dimensions / 2;
  const float* cosines = heads.rotary_table + token * heads.rotary_stride;
  for (unsigned i = lane_index(); i < half; i += kWarpThreads) {
    const bool interleaved = heads.pairs == RotaryPairs::kInterleaved;
    float& first = head[interleaved ? 2 * i : i];
    float& second = head[interleaved ? 2 * i + 1 : half + i];
    const float x = first;
    const float y = second;
    first = multiply_add(x, cosines[i], -(y * cosines[half + i]));
    second = multiply_add(x, cosines[half + i], y * cosines[i]);
  }
}

GPU_FUNCTION void norm_head(const GpuHeads& heads, const float* from, const float* norm,
                            float* head) {
  const unsigned dimensions = heads.kv.head_dimension;
  const float factor = norm == nullptr ? 1.0F : norm_factor(from, dimensions, heads.epsilon);
  for (unsigned i = lane_index(); i < dimensions; i += kWarpThreads) {
    head[i] = norm == nullptr ? from[i] : from[i] * factor * norm[i];
  }
}

// Leaves a head's elements, treated, in `head`, in shared memory, for all lanes to see.
GPU_FUNCTION void treat_head(const GpuHeads& heads, unsigned token, const float* from,
                             const float* norm, float* head) {
  meet_warp();  // what lay there has been read
  norm_head(heads, from, heads.norm_is_last ? nullptr : norm, head);
  meet_warp();
  if (heads.rotary_table != nullptr) rotate_head(heads, token, head);
  meet_warp();
  if (!heads.norm_is_last) return;
  norm_head(heads, head, norm, head);
  meet_warp();
}

template <typename Part, KvFormat kFormat>
GPU_FUNCTION void append(const KvBlocks& blocks, unsigned slot, const float* head) {
  GPU_KEEP_LOOP for (unsigned i = lane_index(); i < blocks.dimensions; i += kWarpThreads) {
    if constexpr (kFormat == KvFormat::kQ8_0) {
      const KvQuant quant = quantize_lanes(head[i]);
      *reinterpret_cast<int8_t*>(Part::template place<kFormat>(blocks, slot, i)) = quant.quant;
      if (lane_index() == 0) *Part::scale(blocks, slot, i) = quant.scale;
    } else {
      store_element<kFormat>(Part::template place<kFormat>(blocks, slot, i), head[i]);
    }
  }
}

}  // namespace
}  // namespace lockstep
