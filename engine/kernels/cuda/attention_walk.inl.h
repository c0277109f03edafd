// Attention of a token by one block that walks over all chunks of its keys, with the bits that
// attend_chunks and merge_chunks give. Included by prompt_attention.inl.h.
#pragma once

#include "engine/kernels/cuda/attention_chunk.inl.h"
#include "engine/kernels/gpu_attention.h"

namespace lockstep {
namespace {

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

// A block takes a token and a KV head's query heads over all their chunks: of the prompted tokens,
// or of the generated ones that have no units.
template <KvFormat kFormat, unsigned kQueries>
GPU_KERNEL_OF(kAttendThreads)
void attend_walking(GpuAttention a, bool prompted) {
  follow_launches();
  const BlockHeads heads = block_heads(a, block_column(), kQueries);
  if (heads.count == 0) return;
  const unsigned dimensions = a.kv.head_dimension;
  const AttendMemory memory = attend_memory(kQueries, dimensions);
  float* outputs = memory.chains + kQueries * kChainFloats;
  const GpuBatchCounts& counts = *a.batch.counts;
  const unsigned end = prompted ? counts.tokens : counts.generated;
  unsigned token = (prompted ? counts.generated : counts.split) + block_row();
  for (; token < end; token += block_rows()) {
    const unsigned position = a.batch.positions[token];
    Merged merged[kQueries];
    // Each thread has the same elements throughout.
    for (unsigned i = thread_index(); i < kQueries * dimensions; i += kAttendThreads) {
      outputs[i] = 0;
    }
    for (unsigned chunk = first_key(a, position) / kChunkKeys; chunk <= position / kChunkKeys;
         ++chunk) {
      float maximum[kQueries];
      float sum[kQueries];
      const unsigned chains =
          weigh_chunk<kFormat, kQueries>(a, token, heads, chunk, memory, maximum, sum);
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
void launch_walk_of(void* stream, const GpuAttention& a, bool prompted) {
  const unsigned parts = divide_up(a.group, kQueries);
  const size_t outputs = static_cast<size_t>(kQueries) * a.kv.head_dimension * sizeof(float);
  launch(stream,
         {.columns = a.kv_head_count * parts,
          .rows = a.grid_rows,
          .threads = kAttendThreads,
          .shared_bytes = attend_memory_bytes(kQueries, a.kv.head_dimension) + outputs},
         attend_walking<kFormat, kQueries>, a, prompted);
}

template <KvFormat kFormat>
void launch_walk(void* stream, const GpuAttention& a, bool prompted) {
  if (a.group == 1) return launch_walk_of<kFormat, 1>(stream, a, prompted);
  if (a.group == 2) return launch_walk_of<kFormat, 2>(stream, a, prompted);
  if (a.group <= 4) return launch_walk_of<kFormat, 4>(stream, a, prompted);
  launch_walk_of<kFormat, kMostQueries>(stream, a, prompted);
}

}  // namespace

void gpu_attend_walked(void* stream, const GpuAttention& attention) {
  with_kv_format(attention.kv.format,
                 [&]<KvFormat kFormat>() { launch_walk<kFormat>(stream, attention, false); });
}

}  // namespace lockstep
