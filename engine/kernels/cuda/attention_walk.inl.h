// Attention of a token by one block that walks over all units of its keys, with the bits that
// attend_units gives. Included by prompt_attention.inl.h.
#pragma once

#include "engine/kernels/cuda/attention_unit.inl.h"
#include "engine/kernels/gpu_attention.h"

namespace lockstep {
namespace {

struct UnitFactors {
  float before;  // for what there was
  float now;     // for the unit
  float maximum;
};

// The results of the units of a token that have been walked over, in shared memory.
struct WalkedUnits {
  float* outputs;  // [query][dimension]
  float* maxima;   // [query]
  float* sums;     // [query]
};

// Each thread has the same elements throughout.
template <unsigned kQueries>
GPU_FUNCTION void clear_walked(const WalkedUnits& walked, unsigned dimensions) {
  for (unsigned i = thread_index(); i < kQueries * dimensions; i += kAttendThreads) {
    walked.outputs[i] = 0;
  }
  if (thread_index() >= kQueries) return;
  walked.maxima[thread_index()] = -FLT_MAX;
  walked.sums[thread_index()] = 0;
}

template <unsigned kQueries>
GPU_FUNCTION void merge_unit(const AttendMemory& memory, unsigned chains, unsigned dimensions,
                             const WalkedUnits& walked) {
  const auto factors = [&](unsigned query) {
    const float own = memory.maxima[query];
    const float before = walked.maxima[query];
    const float maximum = greater(before, own);
    return UnitFactors{exponential_of(before - maximum), exponential_of(own - maximum), maximum};
  };
  for (unsigned i = thread_index(); i < kQueries * dimensions; i += kAttendThreads) {
    const UnitFactors factor = factors(i / dimensions);
    walked.outputs[i] = multiply_add(chain_sum<kQueries>(memory, chains, i), factor.now,
                                     multiply(walked.outputs[i], factor.before));
  }
  meet_block();  // what a step leaves has been read
  const unsigned query = thread_index();
  if (query >= kQueries) return;
  const UnitFactors factor = factors(query);
  walked.sums[query] =
      multiply_add(memory.sums[query], factor.now, multiply(walked.sums[query], factor.before));
  walked.maxima[query] = factor.maximum;
}

// Shapes leave few queries too few registers, if the compiler is to choose how many. 0: it is.
constexpr unsigned walk_blocks_at_once(unsigned queries, AttentionKind kind) {
  return queries <= 4 && kind != AttentionKind::kPlain ? 2 : 0;
}

// A block takes a token and a KV head's query heads over all their units: of the prompted tokens,
// or of the generated ones that have no units.
template <KvFormat kFormat, unsigned kQueries, AttentionKind kKind>
GPU_KERNEL_AT_ONCE(kAttendThreads, (walk_blocks_at_once(kQueries, kKind)))
void attend_walking(GpuAttention a, bool prompted) {
  constexpr bool kShaped = kKind != AttentionKind::kPlain;
  constexpr bool kUnlike = kKind == AttentionKind::kUnlike;
  follow_launches();
  const BlockHeads heads = block_heads(a, block_column(), kQueries);
  if (heads.count == 0) return;
  const unsigned dimensions = value_dimensions<kUnlike>(a.kv);
  const AttendMemory memory = attend_memory<kFormat>(kQueries, a.kv.key_dimension, dimensions);
  WalkedUnits walked;
  walked.outputs = reinterpret_cast<float*>(memory.flag + 1);
  walked.maxima = walked.outputs + kQueries * dimensions;
  walked.sums = walked.maxima + kQueries;
  const GpuBatchCounts& counts = *a.batch.counts;
  const unsigned end = prompted ? counts.tokens : counts.generated;
  unsigned token = (prompted ? counts.generated : counts.split) + block_row();
  for (; token < end; token += block_rows()) {
    const unsigned position = a.batch.positions[token];
    const unsigned sequence = a.batch.sequences[token];
    const uint32_t* pages = a.batch.pages + a.batch.page_tables[sequence];
    const unsigned last = last_key<kShaped>(a, position, length_of<kShaped>(a, sequence));
    const TokenUnits units = token_units<kShaped>(a, position, last);
    clear_walked<kQueries>(walked, dimensions);
    for (unsigned unit = 0; unit < units.count; ++unit) {
      const UnitKeys keys = unit_keys<kShaped>(a, units, unit, position, last, pages);
      const unsigned chains = attend_unit<kFormat, kQueries, kShaped, kUnlike>(
          a, heads, keys, memory, nullptr,
          [&] { load_queries<kQueries>(a, token, heads, memory.queries); });
      merge_unit<kQueries>(memory, chains, dimensions, walked);
    }
    meet_block();
    for (unsigned i = thread_index(); i < heads.count * dimensions; i += kAttendThreads) {
      const unsigned query = i / dimensions;
      const unsigned head = heads.first + query;
      const HeadSums sums = head_sums<kShaped>(a, head, walked.maxima[query], walked.sums[query]);
      write_attention<kUnlike>(a, token, head, i % dimensions,
                               multiply(walked.outputs[i], sums.scale) / sums.sum);
    }
    meet_block();  // they have been read
    if (heads.first + heads.count == a.head_count) pad_attention<kUnlike>(a, token, thread_index());
  }
}

template <KvFormat kFormat, unsigned kQueries>
void launch_walk_of(void* stream, const GpuAttention& a, bool prompted) {
  const unsigned parts = divide_up(a.group, kQueries);
  const size_t walked = kQueries * (static_cast<size_t>(a.kv.value_dimension) + 2) * sizeof(float);
  with_kind(kind_of(a), [&]<AttentionKind kKind>() {
    launch(stream,
           {.columns = a.kv_head_count * parts,
            .rows = a.grid_rows,
            .threads = kAttendThreads,
            .shared_bytes = attend_memory_bytes<kFormat>(kQueries, a.kv) + walked},
           attend_walking<kFormat, kQueries, kKind>, a, prompted);
  });
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
