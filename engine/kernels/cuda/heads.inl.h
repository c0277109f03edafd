// Kernels of gpu_heads.h. Included after gpu_code.h.
#pragma once

#include "engine/base/check.h"
#include "engine/base/checked_math.h"
#include "engine/kernels/attention.h"
#include "engine/kernels/cuda/head_treatment.inl.h"
#include "engine/kernels/gpu_heads.h"

namespace lockstep {
namespace {

constexpr unsigned kHeadWarps = 4;

// A warp takes a head of a token: the query heads come first, then the KV heads.
template <KvFormat kFormat>
GPU_KERNEL_OF(kHeadWarps* kWarpThreads)
void prepare_heads(GpuHeads heads) {
  follow_launches();
  const unsigned index = block_column() * kHeadWarps + warp_index();
  if (index >= heads.head_count + heads.kv_head_count) return;
  const unsigned dimensions = heads.kv.key_dimension;
  float* treated = reinterpret_cast<float*>(shared_memory()) + warp_index() * dimensions;
  for (unsigned token = block_row(); token < heads.batch.counts->tokens; token += block_rows()) {
    if (index < heads.head_count) {
      float* query = heads.queries + token * heads.query_stride + index * dimensions;
      treat_head(heads, token, query, heads.query_norm, treated);
      for (unsigned i = lane_index(); i < dimensions; i += kWarpThreads) query[i] = treated[i];
      continue;
    }
    const unsigned head = index - heads.head_count;
    treat_head(heads, token, heads.keys + token * heads.key_stride + head * dimensions,
               heads.key_norm, treated);
    const unsigned position = heads.batch.positions[token];
    const uint32_t* pages =
        heads.batch.pages + heads.batch.page_tables[heads.batch.sequences[token]];
    const KvBlocks blocks = kv_blocks<kFormat>(heads.kv, head, pages[position / kSlots]);
    append<KeyPart, kFormat>(blocks, position % kSlots, treated);
    append<ValuePart, kFormat>(
        blocks, position % kSlots,
        heads.values + token * heads.value_stride + head * heads.kv.value_dimension);
  }
}

}  // namespace

void gpu_prepare_heads(void* stream, const GpuHeads& heads) {
  for (const unsigned dimension : {heads.kv.key_dimension, heads.kv.value_dimension}) {
    CHECK(dimension % kKeyPiece == 0 && dimension <= kGpuMaxHeadDimension,
          "a head of {} dimensions", dimension);
  }
  const unsigned count = heads.head_count + heads.kv_head_count;
  const Grid grid = {.columns = divide_up(count, kHeadWarps),
                     .rows = heads.grid_rows,
                     .threads = kHeadWarps * kWarpThreads,
                     .shared_bytes = kHeadWarps * heads.kv.key_dimension * sizeof(float)};
  with_kv_format(heads.kv.format,
                 [&]<KvFormat kFormat>() { launch(stream, grid, prepare_heads<kFormat>, heads); });
}

}  // namespace lockstep
