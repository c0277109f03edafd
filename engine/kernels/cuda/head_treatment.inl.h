// The treatment of a head by a warp (gpu_heads.h). Included after gpu_code.h.
#pragma once

#include "engine/kernels/cuda/kernel_words.inl.h"
#include "engine/kernels/cuda/kv_elements.inl.h"
#include "engine/kernels/gpu_heads.h"

namespace lockstep {
namespace {

// Calls store(i, load(i)) for the lane's dimensions i of a head: every 32nd. Several loads are
// under way at once, which what is stored would otherwise keep waiting.
template <typename Load, typename Store>
GPU_FUNCTION void copy_dimensions(unsigned dimensions, const Load& load, const Store& store) {
  constexpr unsigned kAtOnce = 4;
  GPU_KEEP_LOOP
  for (unsigned begin = lane_index(); begin < dimensions; begin += kAtOnce * kWarpThreads) {
    decltype(load(begin)) held[kAtOnce] = {};
    GPU_UNROLL
    for (unsigned k = 0; k < kAtOnce; ++k) {
      const unsigned i = begin + k * kWarpThreads;
      if (i < dimensions) held[k] = load(i);
    }
    GPU_UNROLL
    for (unsigned k = 0; k < kAtOnce; ++k) {
      const unsigned i = begin + k * kWarpThreads;
      if (i < dimensions) store(i, held[k]);
    }
  }
}

GPU_FUNCTION float norm_factor(const float* head, unsigned dimensions, float epsilon) {
  float sum = 0;
  for (unsigned i = lane_index(); i < dimensions; i += kWarpThreads) {
    sum = multiply_add(head[i], head[i], sum);
  }
  sum = add_lanes(sum, kWarpThreads / 2);
  return 1.0F / root(sum / static_cast<float>(dimensions) + epsilon);
}

struct Rotation {
  float cosine;
  float sine;
};
// The rotations of a lane's first pairs, loaded before the head is there.
constexpr unsigned kRotationsAhead = 2;

GPU_FUNCTION Rotation load_rotation(const GpuHeads& heads, unsigned token, unsigned pair) {
  const float* cosines = heads.rotary_table + token * heads.rotary_stride;
  return {cosines[pair], cosines[heads.rotary_dimensions / 2 + pair]};
}

GPU_FUNCTION void load_rotations(const GpuHeads& heads, unsigned token,
                                 Rotation (&ahead)[kRotationsAhead]) {
  GPU_UNROLL
  for (unsigned k = 0; k < kRotationsAhead; ++k) {
    const unsigned pair = lane_index() + k * kWarpThreads;
    const bool is_there = heads.rotary_table != nullptr && pair < heads.rotary_dimensions / 2;
    ahead[k] = is_there ? load_rotation(heads, token, pair) : Rotation();
  }
}

GPU_FUNCTION void rotate_pair(const GpuHeads& heads, unsigned pair, const Rotation& rotation,
                              float* head) {
  const bool interleaved = heads.pairs == RotaryPairs::kInterleaved;
  float& first = head[interleaved ? 2 * pair : pair];
  float& second = head[interleaved ? 2 * pair + 1 : heads.rotary_dimensions / 2 + pair];
  const float x = first;
  const float y = second;
  first = multiply_add(x, rotation.cosine, -(y * rotation.sine));
  second = multiply_add(x, rotation.sine, y * rotation.cosine);
}

GPU_FUNCTION void rotate_head(const GpuHeads& heads, unsigned token,
                              const Rotation (&ahead)[kRotationsAhead], float* head) {
  const unsigned half = heads.rotary_dimensions / 2;
  unsigned pair = lane_index();
  GPU_UNROLL
  for (unsigned k = 0; k < kRotationsAhead; ++k, pair += kWarpThreads) {
    if (pair < half) rotate_pair(heads, pair, ahead[k], head);
  }
  GPU_KEEP_LOOP
  for (; pair < half; pair += kWarpThreads) {
    rotate_pair(heads, pair, load_rotation(heads, token, pair), head);
  }
}

GPU_FUNCTION void norm_head(const GpuHeads& heads, const float* norm, float* head) {
  const unsigned dimensions = heads.kv.key_dimension;
  const float factor = norm_factor(head, dimensions, heads.epsilon);
  copy_dimensions(
      dimensions, [&](unsigned i) { return head[i] * factor * norm[i]; },
      [&](unsigned i, float value) { head[i] = value; });
}

// Leaves a head's elements, treated, in `head`, in shared memory, for all lanes to see.
GPU_FUNCTION void treat_head(const GpuHeads& heads, unsigned token, const float* from,
                             const float* norm, float* head) {
  Rotation rotations[kRotationsAhead];
  load_rotations(heads, token, rotations);
  meet_warp();  // what lay there has been read
  copy_dimensions(
      heads.kv.key_dimension, [&](unsigned i) { return from[i]; },
      [&](unsigned i, float value) { head[i] = value; });
  meet_warp();
  // One place in the code for the norm before the rotation and that behind it.
  GPU_KEEP_LOOP
  for (unsigned turn = 0; turn < 2; ++turn) {
    if (norm != nullptr && (turn == 1) == heads.norm_is_last) norm_head(heads, norm, head);
    meet_warp();
    if (turn == 0 && heads.rotary_table != nullptr) rotate_head(heads, token, rotations, head);
    meet_warp();
  }
}

template <typename Part, KvFormat kFormat>
GPU_FUNCTION void append(const KvBlocks& blocks, unsigned slot, const float* head) {
  copy_dimensions(
      Part::dimensions(blocks), [&](unsigned i) { return head[i]; },
      [&](unsigned i, float value) {
        if constexpr (kFormat == KvFormat::kQ8_0) {
          const KvQuant quant = quantize_lanes(value);
          *reinterpret_cast<int8_t*>(Part::template place<kFormat>(blocks, slot, i)) = quant.quant;
          if (lane_index() == 0) *Part::scale(blocks, slot, i) = quant.scale;
        } else {
          store_element<kFormat>(Part::template place<kFormat>(blocks, slot, i), value);
        }
      });
}

}  // namespace
}  // namespace lockstep
