// Attention of generated tokens, unit by unit (gpu_attention.h). Included after gpu_code.h.
#pragma once

#include <algorithm>

#include "engine/base/check.h"
#include "engine/kernels/cuda/attention_unit.inl.h"
#include "engine/kernels/gpu_attention.h"

namespace lockstep {
namespace {

// The float at which a token's value begins, if it does not lie as its key does.
GPU_FUNCTION size_t value_offset(const GpuHeads& heads, unsigned token, const BlockHeads& own) {
  return token * heads.value_stride + own.kv_head * heads.kv.value_dimension;
}

// Treats the block's queries, a warp each, and another warp the token's own key if the unit has it.
// That one's KV head may have several blocks: each has its own copy, one writes the cache.
template <KvFormat kFormat, unsigned kQueries, bool kUnlike>
GPU_FUNCTION void treat_heads(const GpuHeads& heads, unsigned token, const BlockHeads& own,
                              const UnitKeys& keys, bool appends, const AttendMemory& memory) {
  const unsigned dimensions = heads.kv.key_dimension;
  const unsigned query = warp_index();
  const bool is_key_warp = warp_index() == kKeyWarp && keys.own != kNoKey;
  const size_t offset = token * heads.key_stride + own.kv_head * dimensions;
  float* const own_query = memory.queries + query * dimensions;
  if (query >= own.count && query < kQueries) {
    for (unsigned i = lane_index(); i < dimensions; i += kWarpThreads) own_query[i] = 0;
  }
  // One place in the code for both: it is long, and fetched anew in every launch.
  GPU_KEEP_LOOP
  for (unsigned turn = query < own.count ? 0U : 1U; turn < (is_key_warp ? 2U : 1U); ++turn) {
    const bool is_query = turn == 0;
    const float* const from =
        is_query ? heads.queries + token * heads.query_stride + (own.first + query) * dimensions
                 : heads.keys + offset;
    treat_head(heads, token, from, is_query ? heads.query_norm : heads.key_norm,
               is_query ? own_query : memory.own_key);
  }
  if (keys.own == kNoKey) return;
  if (!appends || (warp_index() != kKeyWarp && warp_index() != kValueWarp)) return;
  const unsigned number = load_of_batch(keys.pages + keys.own / kSlots);
  const KvBlocks page = kv_blocks<kFormat, kUnlike>(heads.kv, own.kv_head, number);
  if (warp_index() == kKeyWarp) {
    append<KeyPart, kFormat>(page, keys.own % kSlots, memory.own_key);
  } else {
    append<ValuePart, kFormat>(page, keys.own % kSlots,
                               heads.values + (kUnlike ? value_offset(heads, token, own) : offset));
  }
}

// Whether all others of a token's `count` blocks that share `arrived` have left what they computed.
// Called by all threads, which then see it.
GPU_FUNCTION bool comes_last(uint32_t* arrived, unsigned count, uint32_t* flag) {
  meet_block();  // what this one leaves is written
  if (thread_index() == 0) {
    const bool last = add_acquire_release(arrived, 1) + 1 == count;
    if (last) *arrived = 0;  // for the next layer, or pass
    *flag = last ? 1 : 0;
  }
  meet_block();
  return *flag != 0;
}

// Finds the factors by which a unit changes those before it: a warp for a query, a lane for a unit.
template <bool kShaped>
GPU_FUNCTION void find_factors(const float* sums, size_t stride, unsigned count, Floats4* factors) {
  float carried = -FLT_MAX;
  for (unsigned begin = 0; begin < count; begin += kWarpThreads) {
    const unsigned lane = lane_index();
    const unsigned unit = begin + lane;
    const bool there = unit < count;
    const float own = there ? sums[unit * stride] : -FLT_MAX;
    float maximum = greater(own, carried);  // of all units so far
    for (unsigned distance = 1; distance < kWarpThreads; distance *= 2) {
      const float other = from_lane(maximum, (lane - distance) % kWarpThreads);
      if (lane >= distance) maximum = greater(maximum, other);
    }
    const float last = from_lane(maximum, (lane - 1) % kWarpThreads);
    const float before = lane == 0 ? carried : last;
    if (there) {
      factors[unit] = {{exponential_of(before - maximum), exponential_of(own - maximum),
                        sums[unit * stride + 1], kShaped ? maximum : 0}};
    }
    carried = from_lane(maximum, kWarpThreads - 1);
  }
}

// Merges all of a token's units in order, whichever was last: by the block whose query heads they
// are. `first`: the token's first unit.
template <unsigned kQueries, bool kShaped, bool kUnlike>
GPU_FUNCTION void merge_units(const GpuAttention& a, unsigned token, const BlockHeads& heads,
                              unsigned first, unsigned count, const AttendMemory& memory) {
  const unsigned dimensions = value_dimensions<kUnlike>(a.kv);
  const size_t row = static_cast<size_t>(first) * a.head_count + heads.first;
  if (warp_index() < heads.count) {
    find_factors<kShaped>(a.partial_sums + (row + warp_index()) * 2, a.head_count * 2, count,
                          memory.factors + warp_index() * kGpuTokenUnits);
  }
  meet_block();
  constexpr unsigned kElements = 2;  // of a thread at a time
  for (unsigned element = thread_index() * kElements; element < heads.count * dimensions;
       element += kAttendThreads * kElements) {
    const unsigned query = element / dimensions;
    const Floats4* factors = memory.factors + query * kGpuTokenUnits;
    const float* from = a.partial_outputs + row * dimensions + element;
    const size_t stride = static_cast<size_t>(a.head_count) * dimensions;
    float sum = 0;
    float outputs[kElements] = {};
    GPU_UNROLL_BY(8) for (unsigned unit = 0; unit < count; ++unit) {
      const Words2 both = load_8(from + unit * stride);
      const Floats4 factor = factors[unit];
      sum = multiply_add(factor.values[2], factor.values[1], multiply(sum, factor.values[0]));
      for (unsigned i = 0; i < kElements; ++i) {
        outputs[i] = multiply_add(bits_to_float(both.words[i]), factor.values[1],
                                  multiply(outputs[i], factor.values[0]));
      }
    }
    const unsigned head = heads.first + query;
    const HeadSums sums = head_sums<kShaped>(a, head, factors[count - 1].values[3], sum);
    for (unsigned i = 0; i < kElements; ++i) {
      write_attention<kUnlike>(a, token, head, element % dimensions + i,
                               multiply(outputs[i], sums.scale) / sums.sum);
    }
  }
}

GPU_FUNCTION GpuAttentionUnit unit_of_batch(const GpuBatch& batch, unsigned row) {
  const Words4 words = load_16_of_batch(batch.units + row);
  return {words.words[0], words.words[1], words.words[2], words.words[3]};
}

// A block takes a unit of a token for a KV head's query heads. `unprepared`: the heads are, which
// it treats itself. Then all other keys and values were written by earlier passes, and are asked
// for before the launches before are done. Without keys to treat (which only kernels that are
// `kShaped` know) the token's own ones are an earlier launch's, and all wait for it.
template <KvFormat kFormat, unsigned kQueries, AttentionKind kKind>
GPU_KERNEL_AT_ONCE(kAttendThreads, (attend_blocks_at_once(kQueries, kKind)))
void attend_units(GpuAttention a, GpuHeads unprepared, bool prepares) {
  constexpr bool kShaped = kKind != AttentionKind::kPlain;
  constexpr bool kUnlike = kKind == AttentionKind::kUnlike;
  const BlockHeads heads = block_heads(a, block_column(), kQueries);
  const unsigned dimensions = value_dimensions<kUnlike>(a.kv);
  const AttendMemory memory = attend_memory<kFormat>(kQueries, a.kv.key_dimension, dimensions);
  const unsigned end = heads.count == 0 ? 0 : load_of_batch(&a.batch.counts->attention_units);
  const bool has_keys = prepares && (!kShaped || unprepared.keys != nullptr);
  bool waits = has_keys && block_row() < end;  // for the launches before, still
  if (!waits) follow_launches();
  for (unsigned row = block_row(); row < end; row += block_rows()) {
    const GpuAttentionUnit unit = unit_of_batch(a.batch, row);
    const TokenUnits units = token_units<kShaped>(a, unit.position, unit.position);
    if (unit.index >= units.count) continue;
    UnitKeys keys = unit_keys<kShaped>(a, units, unit.index, unit.position, unit.position,
                                       a.batch.pages + unit.pages);
    if (has_keys && keys.end == unit.position + 1) keys.own = unit.position;
    const size_t stride = kUnlike ? unprepared.value_stride : unprepared.key_stride;
    const size_t value = unit.token * stride + heads.kv_head * dimensions;
    const float* own_value = has_keys ? unprepared.values + value : nullptr;
    const unsigned chains =
        attend_unit<kFormat, kQueries, kShaped, kUnlike>(a, heads, keys, memory, own_value, [&] {
          if (waits) follow_launches();
          waits = false;
          if (!prepares) return load_queries<kQueries>(a, unit.token, heads, memory.queries);
          const bool appends = block_column() % divide_up(a.group, kQueries) == 0;
          treat_heads<kFormat, kQueries, kUnlike>(unprepared, unit.token, heads, keys, appends,
                                                  memory);
        });
    const bool alone = units.count == 1;
    const size_t partial = static_cast<size_t>(row) * a.head_count + heads.first;
    GPU_KEEP_LOOP
    for (unsigned i = thread_index(); i < heads.count * dimensions; i += kAttendThreads) {
      const float output = chain_sum<kQueries>(memory, chains, i);
      if (alone) {
        // Merged with nothing, -0 becomes 0.
        const unsigned query = i / dimensions;
        const unsigned head = heads.first + query;
        const HeadSums sums = head_sums<kShaped>(a, head, memory.maxima[query], memory.sums[query]);
        write_attention<kUnlike>(a, unit.token, head, i % dimensions,
                                 multiply(output + 0.0F, sums.scale) / sums.sum);
      } else {
        a.partial_outputs[partial * dimensions + i] = output;
      }
    }
    bool ends = alone;
    if (!alone) {
      if (thread_index() < heads.count) {
        float* sums = a.partial_sums + (partial + thread_index()) * 2;
        sums[0] = memory.maxima[thread_index()];
        sums[1] = memory.sums[thread_index()];
      }
      const unsigned first = row - unit.index;
      uint32_t* arrived = a.arrived + static_cast<size_t>(first) * a.head_count + heads.first;
      ends = comes_last(arrived, units.count, memory.flag);
      if (ends)
        merge_units<kQueries, kShaped, kUnlike>(a, unit.token, heads, first, units.count, memory);
    }
    if (ends && heads.first + heads.count == a.head_count) {
      pad_attention<kUnlike>(a, unit.token, thread_index());
    }
    meet_block();  // shared memory has been read
  }
  if (waits) follow_launches();
}

template <KvFormat kFormat, unsigned kQueries>
void launch_units(void* stream, const GpuAttention& a, const GpuHeads* unprepared) {
  const unsigned parts = divide_up(a.group, kQueries);
  AttentionKind kind = kind_of(a);
  if (unprepared != nullptr && unprepared->key_stride != unprepared->value_stride) {
    kind = AttentionKind::kUnlike;
  } else if (unprepared != nullptr && unprepared->keys == nullptr) {
    kind = std::max(kind, AttentionKind::kShaped);
  }
  with_kind(kind, [&]<AttentionKind kKind>() {
    launch(stream,
           {.columns = a.kv_head_count * parts,
            .rows = a.grid_rows,
            .threads = kAttendThreads,
            .shared_bytes = attend_memory_bytes<kFormat>(kQueries, a.kv)},
           attend_units<kFormat, kQueries, kKind>, a,
           unprepared == nullptr ? GpuHeads() : *unprepared, unprepared != nullptr);
  });
}

template <KvFormat kFormat>
void launch_group(void* stream, const GpuAttention& a, const GpuHeads* unprepared) {
  if (a.group == 1) return launch_units<kFormat, 1>(stream, a, unprepared);
  if (a.group == 2) return launch_units<kFormat, 2>(stream, a, unprepared);
  if (a.group <= 4) return launch_units<kFormat, 4>(stream, a, unprepared);
  launch_units<kFormat, kMostQueries>(stream, a, unprepared);
}

}  // namespace

void gpu_attend_generated(void* stream, const GpuAttention& attention, const GpuHeads* unprepared) {
  CHECK(attention.ahead == 0, "units of keys of which {} are later than the token",
        attention.ahead);
  with_kv_format(attention.kv.format,
                 [&]<KvFormat kFormat>() { launch_group<kFormat>(stream, attention, unprepared); });
}

}  // namespace lockstep
