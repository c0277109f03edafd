// Attention of a block over a unit of a token's keys and values (gpu_attention.h). Included after
// gpu_code.h.
#pragma once

#include <cfloat>

#include "engine/kernels/cuda/attention_heads.inl.h"
#include "engine/kernels/cuda/attention_stage.inl.h"

namespace lockstep {
namespace {

constexpr unsigned kMostQueries = 8;  // of a block
// The warps that bring the token's own key and its own value.
constexpr unsigned kKeyWarp = kAttendWarps - 1;
constexpr unsigned kValueWarp = kAttendWarps - 2;
static_assert(kMostQueries <= kAttendWarps, "a warp has the softmax of a query");

// Lanes that share a key; each takes every fourth 8 of its dimensions.
constexpr unsigned kKeyLanes = 4;
constexpr unsigned kWarpKeys = kWarpThreads / kKeyLanes;
static_assert(kAttendWarps * kWarpKeys == kSlots, "a step's keys are shared out at once");

// On a multiprocessor: enough for the memory to be busy, as two with a step's keys and values on
// their way (32 KiB of F16 heads of 128) are. With more, registers would not do. Not measured.
constexpr unsigned attend_blocks_at_once(unsigned queries, AttentionKind kind) {
  return queries <= 2 && kind == AttentionKind::kPlain ? 3 : 2;
}

// How a token's keys in a layer, up to the last one that it sees, are shared out.
struct TokenUnits {
  unsigned first_page;
  unsigned pages;  // of a unit
  unsigned count;
};

template <bool kShaped>
GPU_FUNCTION TokenUnits token_units(const GpuAttention& a, unsigned position, unsigned last) {
  const unsigned first = first_key<kShaped>(a, position) / kSlots;
  const unsigned count = last / kSlots + 1 - first;
  const unsigned pages = divide_up(count, kGpuTokenUnits);
  return {first, pages, divide_up(count, pages)};
}

// A unit's keys, by position.
struct UnitKeys {
  const uint32_t* pages;  // the sequence's
  unsigned begin;
  unsigned end;
  unsigned own;       // the one that is in no cache yet, or kNoKey
  unsigned position;  // the token's
};

template <bool kShaped>
GPU_FUNCTION UnitKeys unit_keys(const GpuAttention& a, const TokenUnits& units, unsigned index,
                                unsigned position, unsigned last, const uint32_t* pages) {
  const unsigned first = first_key<kShaped>(a, position);
  const unsigned begin = (units.first_page + index * units.pages) * kSlots;
  const unsigned end = begin + units.pages * kSlots;
  return {pages, begin < first ? first : begin, end < last + 1 ? end : last + 1, kNoKey, position};
}

// The keys that are seen of the step of `size` keys that begins at `at`.
GPU_FUNCTION SeenKeys seen_keys(const UnitKeys& keys, unsigned at, unsigned size) {
  return {keys.begin < at ? 0 : keys.begin - at, keys.end < at + size ? keys.end - at : size};
}

template <KvFormat kFormat, bool kUnlike>
GPU_FUNCTION KeyStep key_step(const GpuAttention& a, unsigned kv_head, const UnitKeys& keys,
                              unsigned at, unsigned size, unsigned page) {
  const unsigned own = keys.own >= at && keys.own < at + size ? keys.own - at : kNoKey;
  return {kv_blocks<kFormat, kUnlike>(a.kv, kv_head, page), at % kSlots, seen_keys(keys, at, size),
          own};
}

// A block's shared memory. Chains and factors lie where steps have been, once all are done.
struct AttendMemory {
  KvBlocks stage;
  float* chains;     // [chain][query][dimension of values]
  Floats4* factors;  // [query][unit]: merge_units()
  float* queries;    // [query][dimension]
  float* own_key;    // [dimension], treated
  float* weights;    // [pair of keys][query][2]; their scores before
  float* scales;     // [query]: what a step's maximum makes of what there is
  float* maxima;     // [query], of the unit
  float* sums;       // [query], of the unit
  uint32_t* flag;
};
constexpr unsigned kChainFloats = kAttendThreads * kValuePiece;
static_assert(kGpuTokenUnits * sizeof(Floats4) <= kChainFloats * sizeof(float));

template <KvFormat kFormat>
constexpr unsigned work_bytes(unsigned queries, unsigned key_dimensions,
                              unsigned value_dimensions) {
  const unsigned chains = queries * kChainFloats * sizeof(float);
  const unsigned stage =
      stage_bytes_of_both<kFormat>(key_dimensions, value_dimensions,
                                   gpu_attention_step(kFormat, key_dimensions, value_dimensions));
  return stage < chains ? chains : stage;
}

template <KvFormat kFormat>
GPU_FUNCTION AttendMemory attend_memory(unsigned queries, unsigned key_dimensions,
                                        unsigned value_dimensions) {
  std::byte* memory = shared_memory();
  AttendMemory m;
  m.stage = stage_blocks<kFormat>(memory, key_dimensions, value_dimensions,
                                  gpu_attention_step(kFormat, key_dimensions, value_dimensions));
  m.chains = reinterpret_cast<float*>(memory);
  m.factors = reinterpret_cast<Floats4*>(memory);
  m.queries = reinterpret_cast<float*>(
      memory + work_bytes<kFormat>(queries, key_dimensions, value_dimensions));
  m.own_key = m.queries + queries * key_dimensions;
  m.weights = m.own_key + key_dimensions;
  m.scales = m.weights + queries * kSlots;
  m.maxima = m.scales + queries;
  m.sums = m.maxima + queries;
  m.flag = reinterpret_cast<uint32_t*>(m.sums + queries);
  return m;
}

template <KvFormat kFormat>
size_t attend_memory_bytes(unsigned queries, const GpuKvLayer& kv) {
  const size_t floats = (queries + 1) * kv.key_dimension + queries * (kSlots + 3) + 1;
  return work_bytes<kFormat>(queries, kv.key_dimension, kv.value_dimension) +
         floats * sizeof(float);
}

// Leaves the keys' scores where their weights will be.
template <KvFormat kFormat, unsigned kQueries, bool kShaped>
GPU_FUNCTION void score_keys(const SeenKeys& seen, float scale, const AttendMemory& memory) {
  const unsigned first = warp_index() * kWarpKeys;
  if (first >= seen.end || first + kWarpKeys <= seen.begin) return;
  const unsigned key = first + lane_index() % kWarpKeys;
  const unsigned part = lane_index() / kWarpKeys;
  const unsigned dimensions = memory.stage.key_dimensions;
  float scores[kQueries] = {};
  // Shapes leave four queries no registers for more at once.
  GPU_UNROLL_BY((kQueries <= (kShaped ? 2 : 4) ? 2 : 1))
  for (unsigned dimension = part * kKeyPiece; dimension < dimensions;
       dimension += kKeyLanes * kKeyPiece) {
    float elements[kKeyPiece];
    load_key<kFormat>(memory.stage, key, dimension, elements);
    for (unsigned query = 0; query < kQueries; ++query) {
      const float* row = memory.queries + query * dimensions + dimension;
      for (unsigned i = 0; i < kKeyPiece; i += 4) {
        const Floats4 four = *reinterpret_cast<const Floats4*>(row + i);
        for (unsigned j = 0; j < 4; ++j) {
          scores[query] = multiply_add(four.values[j], elements[i + j], scores[query]);
        }
      }
    }
  }
  for (unsigned query = 0; query < kQueries; ++query) {
    float score = scores[query];
    score = score + from_lane_across(score, kWarpKeys);
    score = score + from_lane_across(score, 2 * kWarpKeys);
    if (query % kKeyLanes != part) continue;
    memory.weights[(key / 2 * kQueries + query) * 2 + key % 2] = multiply(score, scale);
  }
}

// The softmax that a warp's query has come to; all lanes have it.
struct Softmax {
  float maximum = -FLT_MAX;
  float sum = 0;
};

// The shape of a query's scores beside their scale.
struct ScoreShape {
  float cap;    // 0: none
  float slope;  // 0: none
  int first;    // position of the step's first key less the token's
};

template <bool kShaped>
GPU_FUNCTION ScoreShape score_shape(const GpuAttention& a, const BlockHeads& heads,
                                    const UnitKeys& keys, unsigned at) {
  if (!kShaped) return {};
  const unsigned query = warp_index();
  const bool slopes = a.slopes != nullptr && query < heads.count;
  return {a.score_cap, slopes ? a.slopes[heads.first + query] : 0.0F,
          static_cast<int>(at) - static_cast<int>(keys.position)};
}

// A warp makes weights of its query's scores.
template <unsigned kQueries, bool kShaped>
GPU_FUNCTION void weigh_keys(const SeenKeys& seen, const ScoreShape& shape,
                             const AttendMemory& memory, Softmax& softmax) {
  constexpr unsigned kLaneKeys = kSlots / kWarpThreads;
  const unsigned query = warp_index();
  if (query >= kQueries) return;
  float* places[kLaneKeys];
  float scores[kLaneKeys];
  bool counts[kLaneKeys];
  float maximum = softmax.maximum;
  for (unsigned k = 0; k < kLaneKeys; ++k) {
    const unsigned key = lane_index() + k * kWarpThreads;
    places[k] = memory.weights + (key / 2 * kQueries + query) * 2 + key % 2;
    counts[k] = key >= seen.begin && key < seen.end;
    scores[k] = *places[k];  // of a key that is not seen whatever lies there
    if (kShaped && shape.cap != 0) {
      scores[k] = multiply(tangent_of(scores[k] / shape.cap), shape.cap);
    }
    if (kShaped && shape.slope != 0) {
      scores[k] =
          multiply_add(shape.slope, slope_distance(shape.first + static_cast<int>(key)), scores[k]);
    }
    if (counts[k]) maximum = greater(maximum, scores[k]);
  }
  for (unsigned distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    maximum = greater(maximum, from_lane_across(maximum, distance));
  }
  float added = 0;
  for (unsigned k = 0; k < kLaneKeys; ++k) {
    const float weight = counts[k] ? exponential_of(scores[k] - maximum) : 0.0F;
    *places[k] = weight;
    added = added + weight;
  }
  added = add_lanes(added, kWarpThreads / 2);
  const float scale = exponential_of(softmax.maximum - maximum);
  softmax.sum = multiply_add(softmax.sum, scale, added);
  softmax.maximum = maximum;
  if (lane_index() == 0) memory.scales[query] = scale;
}

// Loads the weights of a pair of keys, [query][2].
template <unsigned kQueries>
GPU_FUNCTION void load_weights(const float* from, float (&weights)[kQueries * 2]) {
  if constexpr (kQueries == 1) {
    const Words2 two = load_8(from);
    for (unsigned i = 0; i < 2; ++i) weights[i] = bits_to_float(two.words[i]);
  } else {
    for (unsigned i = 0; i < kQueries * 2; i += 4) {
      const Words4 four = load_16(from + i);
      for (unsigned j = 0; j < 4; ++j) weights[i + j] = bits_to_float(four.words[j]);
    }
  }
}

// Which of a step's pairs of values a thread takes, and 4 dimensions of them.
struct Chain {
  unsigned count;  // of chains
  unsigned index;  // beyond the last: the thread has none
  unsigned dimension;
};

GPU_FUNCTION Chain own_chain(const KvBlocks& stage) {
  const unsigned pieces = stage.value_dimensions / kValuePiece;
  const unsigned threads = kAttendThreads / pieces;
  const unsigned pairs = stage.slots / 2;
  return {threads < pairs ? threads : pairs, thread_index() / pieces,
          thread_index() % pieces * kValuePiece};
}

template <KvFormat kFormat, unsigned kQueries>
GPU_FUNCTION void add_values(const SeenKeys& seen, const Chain& chain, const AttendMemory& memory,
                             float (&sums)[kQueries][kValuePiece]) {
  if (chain.index >= chain.count) return;
  for (unsigned query = 0; query < kQueries; ++query) {
    const float scale = memory.scales[query];
    for (unsigned i = 0; i < kValuePiece; ++i) sums[query][i] = multiply(sums[query][i], scale);
  }
  const unsigned first = seen.begin / 2;
  // The first of the chain's own pairs that the token sees a key of.
  const unsigned skipped = first > chain.index ? divide_up(first - chain.index, chain.count) : 0;
  GPU_KEEP_LOOP
  for (unsigned pair = chain.index + skipped * chain.count; 2 * pair < seen.end;
       pair += chain.count) {
    float values[2 * kValuePiece];
    load_values<kFormat>(memory.stage, pair, chain.dimension, values);
    float weights[kQueries * 2];
    load_weights<kQueries>(memory.weights + pair * kQueries * 2, weights);
    // A neighbour's value that the token does not see may be no number.
    const bool first_seen = 2 * pair >= seen.begin;
    const bool second_seen = 2 * pair + 1 < seen.end;
    for (unsigned i = 0; i < kValuePiece; ++i) {
      const float lower = first_seen ? values[2 * i] : 0.0F;
      const float upper = second_seen ? values[2 * i + 1] : 0.0F;
      for (unsigned query = 0; query < kQueries; ++query) {
        sums[query][i] = multiply_add(weights[2 * query], lower, sums[query][i]);
        sums[query][i] = multiply_add(weights[2 * query + 1], upper, sums[query][i]);
      }
    }
  }
}

// Asks for a unit's first keys and values, and brings its queries, and what is the token's own,
// while they are on their way.
template <KvFormat kFormat, typename BringQueries>
GPU_FUNCTION void begin_first_step(const KeyStep& step, const AttendMemory& memory,
                                   const float* own_value, const BringQueries& bring_queries) {
  const KvBlocks& stage = memory.stage;
  begin_keys<kFormat>(step, stage);
  close_copies();
  begin_values<kFormat>(step, stage);
  close_copies();
  if (warp_index() == kValueWarp) {
    copy_neighbour<KeyPart, kFormat>(step, stage);
    copy_neighbour<ValuePart, kFormat>(step, stage);
  }
  bring_queries();
  if (step.own == kNoKey) return;
  if (warp_index() == kKeyWarp) append<KeyPart, kFormat>(stage, step.own, memory.own_key);
  if (warp_index() == kValueWarp) append<ValuePart, kFormat>(stage, step.own, own_value);
}

// A unit for a KV head's query heads: leaves their maxima and sums, and the chains' sums, for all
// threads to see, and returns how many chains there are. `bring_queries`: leaves them in shared
// memory, and the own key if the unit has it; called by all threads while the first step's keys and
// values are on their way. `own_value`: in the device's memory.
template <KvFormat kFormat, unsigned kQueries, bool kShaped, bool kUnlike, typename BringQueries>
GPU_FUNCTION unsigned attend_unit(const GpuAttention& a, const BlockHeads& heads,
                                  const UnitKeys& keys, const AttendMemory& memory,
                                  const float* own_value, const BringQueries& bring_queries) {
  const KvBlocks& stage = memory.stage;
  const unsigned size = stage.slots;
  const bool is_key_warp = warp_index() == kKeyWarp;
  const bool is_value_warp = warp_index() == kValueWarp;
  unsigned at = keys.begin / size * size;
  unsigned page = load_of_batch(keys.pages + at / kSlots);
  begin_first_step<kFormat>(key_step<kFormat, kUnlike>(a, heads.kv_head, keys, at, size, page),
                            memory, own_value, bring_queries);
  wait_for_copies<1>();
  meet_block();
  const Chain chain = own_chain(stage);
  Softmax softmax;
  float sums[kQueries][kValuePiece] = {};
  while (true) {
    // Copies follow one another: keys, values, the next step's keys, its values. What is known of a
    // step is found anew wherever it is needed: registers are few.
    const unsigned next = at + size;
    const bool goes_on = next < keys.end;
    if (goes_on) page = load_of_batch(keys.pages + next / kSlots);
    score_keys<kFormat, kQueries, kShaped>(seen_keys(keys, at, size), a.scale, memory);
    meet_block();  // the keys have been read
    if (goes_on) {
      const KeyStep step = key_step<kFormat, kUnlike>(a, heads.kv_head, keys, next, size, page);
      begin_keys<kFormat>(step, stage);
      if (is_value_warp) copy_neighbour<KeyPart, kFormat>(step, stage);
      if (is_key_warp && step.own != kNoKey) {
        append<KeyPart, kFormat>(stage, step.own, memory.own_key);
      }
    }
    close_copies();
    const ScoreShape shape = score_shape<kShaped>(a, heads, keys, at);
    weigh_keys<kQueries, kShaped>(seen_keys(keys, at, size), shape, memory, softmax);
    wait_for_copies<1>();  // but for the next keys
    meet_block();
    add_values<kFormat, kQueries>(seen_keys(keys, at, size), chain, memory, sums);
    wait_for_copies<0>();
    meet_block();  // the values have been read
    if (!goes_on) break;
    at = next;
    const KeyStep step = key_step<kFormat, kUnlike>(a, heads.kv_head, keys, at, size, page);
    begin_values<kFormat>(step, stage);
    if (is_value_warp && step.own != kNoKey) {
      copy_neighbour<ValuePart, kFormat>(step, stage);
      append<ValuePart, kFormat>(stage, step.own, own_value);
    }
    close_copies();
  }
  if (chain.index < chain.count) {
    for (unsigned query = 0; query < kQueries; ++query) {
      float* row = memory.chains + (chain.index * kQueries + query) * stage.value_dimensions;
      for (unsigned i = 0; i < kValuePiece; ++i) row[chain.dimension + i] = sums[query][i];
    }
  }
  if (warp_index() < kQueries && lane_index() == 0) {
    memory.maxima[warp_index()] = softmax.maximum;
    memory.sums[warp_index()] = softmax.sum;
  }
  meet_block();
  return chain.count;
}

template <unsigned kQueries>
GPU_FUNCTION float chain_sum(const AttendMemory& memory, unsigned chains, unsigned element) {
  const unsigned stride = kQueries * memory.stage.value_dimensions;
  float sum = memory.chains[element];
  for (unsigned chain = 1; chain < chains; ++chain) {
    sum = sum + memory.chains[chain * stride + element];
  }
  return sum;
}

// As the caller's threads have them; those of heads beyond the last are zeros.
template <unsigned kQueries>
GPU_FUNCTION void load_queries(const GpuAttention& a, unsigned token, const BlockHeads& heads,
                               float* queries) {
  const unsigned dimensions = a.kv.key_dimension;
  const float* from = a.queries + token * a.query_stride + heads.first * dimensions;
  for (unsigned i = thread_index(); i < kQueries * dimensions; i += kAttendThreads) {
    queries[i] = i < heads.count * dimensions ? from[i] : 0.0F;
  }
}

}  // namespace
}  // namespace lockstep
