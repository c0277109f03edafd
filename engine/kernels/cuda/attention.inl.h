// Attention of generated tokens, chunk by chunk (gpu_attention.h). Included after gpu_code.h.
#pragma once

#include "engine/kernels/cuda/attention_chunk.inl.h"
#include "engine/kernels/gpu_attention.h"

namespace lockstep {
namespace {

// A block takes a chunk of a token for a KV head's query heads.
template <KvFormat kFormat, unsigned kQueries>
GPU_KERNEL_OF(kAttendThreads)
void attend_chunks(GpuAttention a) {
  follow_launches();
  const BlockHeads heads = block_heads(a, block_column(), kQueries);
  if (heads.count == 0) return;
  const unsigned dimensions = a.kv.head_dimension;
  const AttendMemory memory = attend_memory(kQueries, dimensions);
  const unsigned units = a.batch.counts->attention_units;
  for (unsigned unit = block_row(); unit < units; unit += block_rows()) {
    const unsigned token = a.batch.unit_tokens[unit];
    const unsigned chunk = unit - a.batch.first_units[token];
    if (chunk < first_key(a, a.batch.positions[token]) / kChunkKeys) continue;
    float maximum[kQueries];
    float sum[kQueries];
    const unsigned chains =
        weigh_chunk<kFormat, kQueries>(a, token, heads, chunk, memory, maximum, sum);
    const size_t row = static_cast<size_t>(unit) * a.head_count + heads.first;
    for (unsigned i = thread_index(); i < heads.count * dimensions; i += kAttendThreads) {
      a.partial_outputs[row * dimensions + i] = chain_sum<kQueries>(memory, chains, dimensions, i);
    }
    for (unsigned query = 0; query < kQueries; ++query) {
      if (thread_index() != 0 || query >= heads.count) continue;
      a.partial_sums[(row + query) * 2] = maximum[query];
      a.partial_sums[(row + query) * 2 + 1] = sum[query];
    }
    meet_block();  // shared memory has been read
  }
}

// A block takes a query head of a token, a thread a dimension.
GPU_KERNEL_OF(kAttendThreads) void merge_chunks(GpuAttention a) {
  follow_launches();
  const unsigned head = block_column();
  const unsigned dimensions = a.kv.head_dimension;
  for (unsigned token = block_row(); token < a.batch.counts->split; token += block_rows()) {
    const unsigned position = a.batch.positions[token];
    const unsigned first = a.batch.first_units[token];
    const unsigned begin = first + first_key(a, position) / kChunkKeys;
    const unsigned end = first + position / kChunkKeys + 1;
    for (unsigned i = thread_index(); i < dimensions; i += kAttendThreads) {
      Merged merged;
      GPU_UNROLL_BY(4) for (unsigned unit = begin; unit < end; ++unit) {
        const size_t row = static_cast<size_t>(unit) * a.head_count + head;
        merged.add(a.partial_sums[row * 2], a.partial_sums[row * 2 + 1],
                   a.partial_outputs[row * dimensions + i]);
      }
      write_attention(a, token, head, i, merged.output / merged.sum);
    }
    if (head + 1 == a.head_count) pad_attention(a, token, thread_index());
  }
}

template <KvFormat kFormat, unsigned kQueries>
void launch_chunks(void* stream, const GpuAttention& a) {
  const unsigned parts = divide_up(a.group, kQueries);
  launch(stream,
         {.columns = a.kv_head_count * parts,
          .rows = a.grid_rows,
          .threads = kAttendThreads,
          .shared_bytes = attend_memory_bytes(kQueries, a.kv.head_dimension)},
         attend_chunks<kFormat, kQueries>, a);
}

template <KvFormat kFormat>
void launch_group(void* stream, const GpuAttention& a) {
  if (a.group == 1) return launch_chunks<kFormat, 1>(stream, a);
  if (a.group == 2) return launch_chunks<kFormat, 2>(stream, a);
  if (a.group <= 4) return launch_chunks<kFormat, 4>(stream, a);
  launch_chunks<kFormat, kMostQueries>(stream, a);
}

}  // namespace

void gpu_attend_generated(void* stream, const GpuAttention& attention) {
  with_kv_format(attention.kv.format,
                 [&]<KvFormat kFormat>() { launch_group<kFormat>(stream, attention); });
  launch(stream,
         {.columns = attention.head_count, .rows = attention.token_rows, .threads = kAttendThreads},
         merge_chunks, attention);
}

}  // namespace lockstep
