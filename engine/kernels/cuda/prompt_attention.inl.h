// Attention of prompted tokens (gpu_attention.h). Included after gpu_code.h.
#pragma once

#include "engine/kernels/cuda/attention_chunk.inl.h"
#include "engine/kernels/cuda/prompt_tiles.inl.h"
#include "engine/kernels/gpu_attention.h"

namespace lockstep {
namespace {

constexpr unsigned kMostTileDimensions = 256;

// Brings a chunk's result into the token's: outputs in shared memory, [query][dimension].
template <unsigned kQueries>
GPU_FUNCTION void merge_into(const AttendMemory& memory, unsigned chains, unsigned dimensions,
                             const float (&chunk_maximum)[kQueries],
                             const float (&chunk_sum)[kQueries], Merged (&merged)[kQueries],
                             float* outputs) {
  for (unsigned query = 0; query < kQueries; ++query) {
    const float before = merged[query].maximum;
    merged[query].add(chunk_maximum[query], chunk_sum[query], 0);
    if (thread_index() != 0) continue;
    memory.warps[2 * query] = exponential_of(before - merged[query].maximum);
    memory.warps[2 * query + 1] = exponential_of(chunk_maximum[query] - merged[query].maximum);
  }
  meet_block();
  for (unsigned i = thread_index(); i < kQueries * dimensions; i += kAttendThreads) {
    const float* factors = memory.warps + 2 * (i / dimensions);
    outputs[i] = multiply_add(chain_sum<kQueries>(memory, chains, dimensions, i), factors[1],
                              outputs[i] * factors[0]);
  }
  meet_block();
}

// A block takes a prompted token and a KV head's query heads over all their chunks.
template <KvFormat kFormat, unsigned kQueries>
GPU_KERNEL_OF(kAttendThreads)
void attend_whole(GpuAttention a) {
  const BlockHeads heads = block_heads(a, block_column(), kQueries);
  if (heads.count == 0) return;
  const unsigned dimensions = a.kv.head_dimension;
  const AttendMemory memory = attend_memory(kQueries, dimensions);
  float* outputs = memory.chains + kQueries * kChainFloats;
  const GpuBatchCounts& counts = *a.batch.counts;
  for (unsigned token = counts.generated + block_row(); token < counts.tokens;
       token += block_rows()) {
    const unsigned position = a.batch.positions[token];
    Merged merged[kQueries];
    // Each thread has the same elements throughout.
    for (unsigned i = thread_index(); i < kQueries * dimensions; i += kAttendThreads) {
      outputs[i] = 0;
    }
    for (unsigned chunk = first_key(a, position) / kChunkKeys; chunk <= position / kChunkKeys;
         ++chunk) {
      const ChunkKeys keys = chunk_keys<kFormat>(a, token, heads.kv_head, chunk, memory);
      load_queries<kQueries>(a, token, heads, memory.queries);
      float maximum[kQueries];
      float sum[kQueries];
      weigh_keys<kFormat, kQueries>(a, keys, memory, maximum, sum);
      const unsigned chains = weigh_values<kFormat, kQueries>(a, keys, memory);
      merge_into<kQueries>(memory, chains, dimensions, maximum, sum, merged, outputs);
    }
    for (unsigned query = 0; query < kQueries; ++query) {
      if (query >= heads.count) continue;
      for (unsigned i = thread_index(); i < dimensions; i += kAttendThreads) {
        write_attention(a, token, heads.first + query, i,
                        outputs[query * dimensions + i] / merged[query].sum);
      }
    }
    meet_block();  // the outputs have been read
    if (heads.first + heads.count == a.head_count) pad_attention(a, token, thread_index());
  }
}

template <KvFormat kFormat, unsigned kQueries>
void launch_whole(void* stream, const GpuAttention& a) {
  const unsigned parts = (a.group + kQueries - 1) / kQueries;
  const size_t outputs = static_cast<size_t>(kQueries) * a.kv.head_dimension * sizeof(float);
  launch(stream,
         {.columns = a.kv_head_count * parts,
          .rows = a.grid_rows,
          .threads = kAttendThreads,
          .shared_bytes = attend_memory_bytes(kQueries, a.kv.head_dimension) + outputs},
         attend_whole<kFormat, kQueries>, a);
}

template <KvFormat kFormat>
void launch_prompted(void* stream, const GpuAttention& a) {
  if constexpr (kFormat != KvFormat::kF32) {
    if (a.kv.head_dimension <= 64) return launch_tiles<kFormat, 2>(stream, a);
    if (a.kv.head_dimension <= 96) return launch_tiles<kFormat, 3>(stream, a);
    if (a.kv.head_dimension <= 128) return launch_tiles<kFormat, 4>(stream, a);
    if (a.kv.head_dimension <= kMostTileDimensions) return launch_tiles<kFormat, 8>(stream, a);
  }
  if (a.group == 1) return launch_whole<kFormat, 1>(stream, a);
  launch_whole<kFormat, kMostQueries>(stream, a);
}

}  // namespace

bool gpu_has_prompt_tiles(KvFormat format, size_t head_dimension) {
  return format != KvFormat::kF32 && head_dimension <= kMostTileDimensions;
}

void gpu_attend_prompted(void* stream, const GpuAttention& attention) {
  with_kv_format(attention.kv.format,
                 [&]<KvFormat kFormat>() { launch_prompted<kFormat>(stream, attention); });
}

}  // namespace lockstep
