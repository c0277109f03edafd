// What a block does with a chunk of keys and values (gpu_attention.h). Included after gpu_code.h.
#pragma once

#include <cfloat>

#include "engine/base/checked_math.h"
#include "engine/kernels/cuda/kv_elements.inl.h"
#include "engine/kernels/gpu_attention.h"

namespace lockstep {
namespace {

constexpr unsigned kAttendThreads = 128;
constexpr unsigned kAttendWarps = kAttendThreads / kWarpThreads;
constexpr unsigned kChunkKeys = static_cast<unsigned>(kAttentionChunkTokens);
constexpr unsigned kChunkPages = kChunkKeys / kSlots;
constexpr unsigned kThreadKeys = kChunkKeys / kAttendThreads;
constexpr unsigned kMostQueries = 8;  // of a block

// The query heads [first, first + count) of one KV head that a block has.
struct BlockHeads {
  unsigned kv_head;
  unsigned first;
  unsigned count;
};

GPU_FUNCTION BlockHeads block_heads(const GpuAttention& a, unsigned column, unsigned queries) {
  const unsigned parts = divide_up(a.group, queries);
  const unsigned kv_head = column / parts;
  const unsigned group_begin = kv_head * a.group;
  const unsigned begin = group_begin < a.group_offset ? 0 : group_begin - a.group_offset;
  const unsigned group_end = group_begin + a.group - a.group_offset;
  const unsigned end = group_end < a.head_count ? group_end : a.head_count;
  const unsigned first = begin + column % parts * queries;
  const unsigned left = first < end ? end - first : 0;
  return {kv_head, first, left < queries ? left : queries};
}

// The keys that a token sees of a chunk: [begin, end), from the chunk's first on.
struct ChunkKeys {
  const KvBlocks* pages;  // in shared memory
  unsigned begin;
  unsigned end;
};

GPU_FUNCTION unsigned first_key(const GpuAttention& a, unsigned position) {
  return a.window == 0 || a.window > position ? 0 : position + 1 - a.window;
}

// A block's shared memory.
struct AttendMemory {
  KvBlocks* pages;
  float* queries;  // [query][dimension]
  float* weights;  // [query][key]
  float* warps;    // [query][warp]
  float* chains;   // [chain][query][dimension]
};
constexpr unsigned kChainFloats = kAttendThreads * kValuePiece;

GPU_FUNCTION AttendMemory attend_memory(unsigned queries, unsigned dimensions) {
  AttendMemory memory;
  memory.pages = reinterpret_cast<KvBlocks*>(shared_memory());
  memory.queries = reinterpret_cast<float*>(memory.pages + kChunkPages);
  memory.weights = memory.queries + queries * dimensions;
  memory.warps = memory.weights + queries * kChunkKeys;
  memory.chains = memory.warps + queries * kAttendWarps;
  return memory;
}

size_t attend_memory_bytes(unsigned queries, unsigned dimensions) {
  return kChunkPages * sizeof(KvBlocks) +
         queries * (dimensions + kChunkKeys + kAttendWarps + kChainFloats) * sizeof(float);
}

// Called by the whole block, before it meets.
template <KvFormat kFormat>
GPU_FUNCTION ChunkKeys chunk_keys(const GpuAttention& a, unsigned token, unsigned kv_head,
                                  unsigned chunk, const AttendMemory& memory) {
  const unsigned position = a.batch.positions[token];
  const unsigned first = first_key(a, position);
  const unsigned origin = chunk * kChunkKeys;
  ChunkKeys keys;
  keys.pages = memory.pages;
  keys.begin = first > origin ? first - origin : 0;
  keys.end = position + 1 - origin < kChunkKeys ? position + 1 - origin : kChunkKeys;
  const unsigned page = thread_index();
  // Pages that no key is seen of are not looked up.
  if (page < kChunkPages && page >= keys.begin / kSlots && page * kSlots < keys.end) {
    const uint32_t* table = a.batch.pages + a.batch.page_tables[a.batch.sequences[token]];
    memory.pages[page] = kv_blocks<kFormat>(a.kv, kv_head, table[origin / kSlots + page]);
  }
  return keys;
}

// Heads beyond the last are zeros.
template <unsigned kQueries>
GPU_FUNCTION void load_queries(const GpuAttention& a, unsigned token, const BlockHeads& heads,
                               float* queries) {
  const unsigned dimensions = a.kv.head_dimension;
  const float* from = a.queries + token * a.query_stride + heads.first * dimensions;
  for (unsigned i = thread_index(); i < kQueries * dimensions; i += kAttendThreads) {
    queries[i] = i < heads.count * dimensions ? from[i] : 0.0F;
  }
  meet_block();
}

// The thread's keys are i and i + 128.
template <KvFormat kFormat, unsigned kQueries>
GPU_FUNCTION void score_keys(const GpuAttention& a, const ChunkKeys& keys, const float* queries,
                             float (&scores)[kQueries][kThreadKeys]) {
  const unsigned dimensions = a.kv.head_dimension;
  const KvBlocks* pages[kThreadKeys];
  unsigned slots[kThreadKeys];
  for (unsigned k = 0; k < kThreadKeys; ++k) {
    // In place of a key that is not seen the last one that is: nothing else is sure to be there.
    unsigned key = thread_index() + k * kAttendThreads;
    if (key < keys.begin || key >= keys.end) key = keys.end - 1;
    pages[k] = &keys.pages[key / kSlots];
    slots[k] = key % kSlots;
    for (unsigned query = 0; query < kQueries; ++query) scores[query][k] = 0;
  }
  GPU_UNROLL_BY(2) for (unsigned dimension = 0; dimension < dimensions; dimension += kKeyPiece) {
    float elements[kThreadKeys][kKeyPiece];
    for (unsigned k = 0; k < kThreadKeys; ++k) {
      load_key<kFormat>(*pages[k], slots[k], dimension, elements[k]);
    }
    for (unsigned query = 0; query < kQueries; ++query) {
      const float* row = queries + query * dimensions + dimension;
      for (unsigned i = 0; i < kKeyPiece; i += 4) {
        const Floats4 four = *reinterpret_cast<const Floats4*>(row + i);
        for (unsigned k = 0; k < kThreadKeys; ++k) {
          for (unsigned j = 0; j < 4; ++j) {
            scores[query][k] = multiply_add(four.values[j], elements[k][i + j], scores[query][k]);
          }
        }
      }
    }
  }
  for (unsigned query = 0; query < kQueries; ++query) {
    for (unsigned k = 0; k < kThreadKeys; ++k) {
      scores[query][k] = multiply(scores[query][k], a.scale);
    }
  }
}

// The greatest score of each query, or the sum of them, over the block.
template <bool kSum, unsigned kQueries>
GPU_FUNCTION void over_block(float* warps, float (&values)[kQueries]) {
  const auto join = [](float x, float y) { return kSum ? x + y : greater(x, y); };
  for (unsigned query = 0; query < kQueries; ++query) {
    for (unsigned distance = 16; distance > 0; distance /= 2) {
      values[query] = join(values[query], from_lane_across(values[query], distance));
    }
    if (lane_index() == 0) warps[query * kAttendWarps + warp_index()] = values[query];
  }
  meet_block();
  for (unsigned query = 0; query < kQueries; ++query) {
    values[query] = warps[query * kAttendWarps];
    for (unsigned warp = 1; warp < kAttendWarps; ++warp) {
      values[query] = join(values[query], warps[query * kAttendWarps + warp]);
    }
  }
  meet_block();
}

// Leaves the keys' weights in shared memory.
template <KvFormat kFormat, unsigned kQueries>
GPU_FUNCTION void weigh_keys(const GpuAttention& a, const ChunkKeys& keys,
                             const AttendMemory& memory, float (&maximum)[kQueries],
                             float (&sum)[kQueries]) {
  float scores[kQueries][kThreadKeys];
  score_keys<kFormat, kQueries>(a, keys, memory.queries, scores);
  bool seen[kThreadKeys];
  for (unsigned k = 0; k < kThreadKeys; ++k) {
    const unsigned key = thread_index() + k * kAttendThreads;
    seen[k] = key >= keys.begin && key < keys.end;
  }
  for (unsigned query = 0; query < kQueries; ++query) {
    maximum[query] = -FLT_MAX;
    for (unsigned k = 0; k < kThreadKeys; ++k) {
      if (seen[k]) maximum[query] = greater(maximum[query], scores[query][k]);
    }
  }
  over_block<false>(memory.warps, maximum);
  for (unsigned query = 0; query < kQueries; ++query) {
    sum[query] = 0;
    for (unsigned k = 0; k < kThreadKeys; ++k) {
      const float weight = seen[k] ? exponential_of(scores[query][k] - maximum[query]) : 0.0F;
      memory.weights[query * kChunkKeys + thread_index() + k * kAttendThreads] = weight;
      sum[query] = sum[query] + weight;
    }
  }
  over_block<true>(memory.warps, sum);
}

// Leaves the chains' sums in shared memory; returns how many chains there are.
template <KvFormat kFormat, unsigned kQueries>
GPU_FUNCTION unsigned weigh_values(const GpuAttention& a, const ChunkKeys& keys,
                                   const AttendMemory& memory) {
  const unsigned dimensions = a.kv.head_dimension;
  const unsigned pieces = dimensions / kValuePiece;
  const unsigned chains = kAttendThreads / pieces;
  const unsigned chain = thread_index() / pieces;
  const unsigned dimension = thread_index() % pieces * kValuePiece;
  if (chain < chains) {
    float sums[kQueries][kValuePiece] = {};
    const unsigned first = keys.begin / 2;
    // Of the chain's own pairs the first that the token sees a key of.
    const unsigned skipped = first > chain ? divide_up(first - chain, chains) : 0;
    GPU_UNROLL_BY(4)
    for (unsigned pair = chain + skipped * chains; 2 * pair < keys.end; pair += chains) {
      float values[2 * kValuePiece];
      load_values<kFormat>(keys.pages[pair / (kSlots / 2)], pair % (kSlots / 2), dimension, values);
      // What a neighbour's slot holds that the token does not see may be no number.
      const bool first_seen = 2 * pair >= keys.begin;
      const bool second_seen = 2 * pair + 1 < keys.end;
      for (unsigned i = 0; i < kValuePiece; ++i) {
        const float lower = first_seen ? values[2 * i] : 0.0F;
        const float upper = second_seen ? values[2 * i + 1] : 0.0F;
        for (unsigned query = 0; query < kQueries; ++query) {
          const float* weights = memory.weights + query * kChunkKeys + 2 * pair;
          sums[query][i] = multiply_add(weights[0], lower, sums[query][i]);
          sums[query][i] = multiply_add(weights[1], upper, sums[query][i]);
        }
      }
    }
    for (unsigned query = 0; query < kQueries; ++query) {
      float* row = memory.chains + (chain * kQueries + query) * dimensions + dimension;
      for (unsigned i = 0; i < kValuePiece; ++i) row[i] = sums[query][i];
    }
  }
  meet_block();
  return chains;
}

// A chunk of a token for its query heads: the maximums and the sums; the chains' as weigh_values().
template <KvFormat kFormat, unsigned kQueries>
GPU_FUNCTION unsigned weigh_chunk(const GpuAttention& a, unsigned token, const BlockHeads& heads,
                                  unsigned chunk, const AttendMemory& memory,
                                  float (&maximum)[kQueries], float (&sum)[kQueries]) {
  const ChunkKeys keys = chunk_keys<kFormat>(a, token, heads.kv_head, chunk, memory);
  load_queries<kQueries>(a, token, heads, memory.queries);
  weigh_keys<kFormat, kQueries>(a, keys, memory, maximum, sum);
  return weigh_values<kFormat, kQueries>(a, keys, memory);
}

template <unsigned kQueries>
GPU_FUNCTION float chain_sum(const AttendMemory& memory, unsigned chains, unsigned dimensions,
                             unsigned element) {
  float sum = memory.chains[element];
  for (unsigned chain = 1; chain < chains; ++chain) {
    sum = sum + memory.chains[chain * kQueries * dimensions + element];
  }
  return sum;
}

// What the chunks of a query give together; each is brought in by its maximum, its sum and one
// element of its output.
struct Merged {
  float maximum = -FLT_MAX;
  float sum = 0;
  float output = 0;

  GPU_FUNCTION void add(float chunk_maximum, float chunk_sum, float chunk_output) {
    const float most = greater(maximum, chunk_maximum);
    const float before = exponential_of(maximum - most);
    const float now = exponential_of(chunk_maximum - most);
    sum = multiply_add(chunk_sum, now, sum * before);
    output = multiply_add(chunk_output, now, output * before);
    maximum = most;
  }
};

GPU_FUNCTION void write_attention(const GpuAttention& a, unsigned token, unsigned head,
                                  unsigned dimension, float value) {
  const unsigned column = head * a.kv.head_dimension + dimension;
  if (a.output.floats != nullptr) a.output.floats[token * a.output.float_stride + column] = value;
  if (a.output.bf16 != nullptr)
    a.output.bf16[token * a.output.bf16_stride + column] = to_bf16(value);
}

// Products take 32 columns at a time. By the threads that have the token's last head.
GPU_FUNCTION void pad_attention(const GpuAttention& a, unsigned token, unsigned thread) {
  const unsigned columns = a.head_count * a.kv.head_dimension;
  if (a.output.bf16 == nullptr || thread >= (32 - columns % 32) % 32) return;
  a.output.bf16[token * a.output.bf16_stride + columns + thread] = 0;
}

}  // namespace
}  // namespace lockstep
