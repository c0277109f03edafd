// Kernels of gpu_heads.h. Included after gpu_code.h.
#pragma once

#include "engine/base/check.h"
#include "engine/base/checked_math.h"
#include "engine/kernels/attention.h"
#include "engine/kernels/cuda/kv_elements.inl.h"
#include "engine/kernels/cuda/lanes.inl.h"
#include "engine/kernels/gpu_heads.h"

namespace lockstep {
namespace {

constexpr unsigned kHeadWarps = 4;

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

// A head's elements, treated, in the warp's part of shared memory.
GPU_FUNCTION float* treat_head(const GpuHeads& heads, unsigned token, const float* from,
                               const float* norm) {
  const unsigned dimensions = heads.kv.head_dimension;
  float* head = reinterpret_cast<float*>(shared_memory()) + warp_index() * dimensions;
  meet_warp();  // what lay there has been read
  const float factor = norm == nullptr ? 1.0F : norm_factor(from, dimensions, heads.epsilon);
  for (unsigned i = lane_index(); i < dimensions; i += kWarpThreads) {
    head[i] = norm == nullptr ? from[i] : from[i] * factor * norm[i];
  }
  meet_warp();
  if (heads.rotary_table != nullptr) rotate_head(heads, token, head);
  meet_warp();
  return head;
}

template <KvFormat kFormat>
GPU_FUNCTION void append(const KvBlocks& blocks, unsigned slot, const float* key,
                         const float* value) {
  for (unsigned i = lane_index(); i < blocks.dimensions; i += kWarpThreads) {
    if constexpr (kFormat == KvFormat::kQ8_0) {
      const KvQuant of_key = quantize_lanes(key[i]);
      const KvQuant of_value = quantize_lanes(value[i]);
      *reinterpret_cast<int8_t*>(key_place<kFormat>(blocks, slot, i)) = of_key.quant;
      *reinterpret_cast<int8_t*>(value_place<kFormat>(blocks, slot, i)) = of_value.quant;
      if (lane_index() != 0) continue;
      *key_scale(blocks, slot, i) = of_key.scale;
      *value_scale(blocks, slot, i) = of_value.scale;
    } else {
      store_element<kFormat>(key_place<kFormat>(blocks, slot, i), key[i]);
      store_element<kFormat>(value_place<kFormat>(blocks, slot, i), value[i]);
    }
  }
}

// A warp takes a head of a token: the query heads come first, then the KV heads.
template <KvFormat kFormat>
GPU_KERNEL_OF(kHeadWarps* kWarpThreads)
void prepare_heads(GpuHeads heads) {
  follow_launches();
  const unsigned index = block_column() * kHeadWarps + warp_index();
  if (index >= heads.head_count + heads.kv_head_count) return;
  const unsigned dimensions = heads.kv.head_dimension;
  for (unsigned token = block_row(); token < heads.batch.counts->tokens; token += block_rows()) {
    if (index < heads.head_count) {
      float* query = heads.queries + token * heads.query_stride + index * dimensions;
      const float* treated = treat_head(heads, token, query, heads.query_norm);
      for (unsigned i = lane_index(); i < dimensions; i += kWarpThreads) query[i] = treated[i];
      continue;
    }
    const unsigned head = index - heads.head_count;
    const size_t offset = token * heads.kv_stride + head * dimensions;
    const float* key = treat_head(heads, token, heads.keys + offset, heads.key_norm);
    const unsigned position = heads.batch.positions[token];
    const uint32_t* pages =
        heads.batch.pages + heads.batch.page_tables[heads.batch.sequences[token]];
    append<kFormat>(kv_blocks<kFormat>(heads.kv, head, pages[position / kSlots]), position % kSlots,
                    key, heads.values + offset);
  }
}

}  // namespace

void gpu_prepare_heads(void* stream, const GpuHeads& heads) {
  CHECK(heads.kv.head_dimension % kKeyPiece == 0 && heads.kv.head_dimension <= kMaxHeadDimension,
        "a head of {} dimensions", heads.kv.head_dimension);
  const unsigned count = heads.head_count + heads.kv_head_count;
  const Grid grid = {.columns = divide_up(count, kHeadWarps),
                     .rows = heads.grid_rows,
                     .threads = kHeadWarps * kWarpThreads,
                     .shared_bytes = kHeadWarps * heads.kv.head_dimension * sizeof(float)};
  with_kv_format(heads.kv.format,
                 [&]<KvFormat kFormat>() { launch(stream, grid, prepare_heads<kFormat>, heads); });
}

}  // namespace lockstep
