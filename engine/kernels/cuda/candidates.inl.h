// Kernels of gpu_candidates.h. Included after gpu_code.h.
//
// A row is cut into segments. A block finds the candidates of a segment, then one block those of
// the row among them. Either holds its entries in registers and finds the least candidate bit by
// bit, counting how many entries are as likely: exact, without atomics, and the same for every
// number of rows.
#pragma once

#include "engine/base/checked_math.h"
#include "engine/kernels/cuda/kernel_words.inl.h"
#include "engine/kernels/gpu_candidates.h"

namespace lockstep {
namespace {

constexpr unsigned kCandidateThreads = 256;
constexpr unsigned kCandidateWarps = kCandidateThreads / kWarpThreads;
constexpr unsigned kThreadEntries = kGpuCandidateSegment / kCandidateThreads;
static_assert(kThreadEntries * kCandidateThreads == kGpuCandidateSegment);
static_assert(kCandidateThreads >= kGpuCandidates);  // one for each when they are put in order

// Shared memory of a block.
struct CandidateShared {
  uint32_t sums[2][kCandidateWarps];
  uint32_t chosen[kCandidateWarps];
  uint32_t keys[kGpuCandidates];
  uint32_t tokens[kGpuCandidates];
  uint32_t ordered_keys[kGpuCandidates];
  uint32_t ordered_tokens[kGpuCandidates];
};

GPU_FUNCTION float logit_of_key(uint32_t key) {
  constexpr uint32_t kSign = 0x80000000U;
  return bits_to_float((key & kSign) != 0 ? key & ~kSign : ~key);
}

GPU_FUNCTION bool is_finite(float logit) {
  return (float_to_bits(logit) & 0x7F800000U) != 0x7F800000U;
}

// Sums over the block's threads, which all have them. Called by all of them.
struct BlockSums {
  CandidateShared& shared;
  unsigned turn = 0;

  // Two places by turns: a thread that still reads the sum before is not disturbed.
  GPU_FUNCTION uint32_t operator()(uint32_t value) {
    value = sum_of_lanes(value);
    uint32_t* sums = shared.sums[turn];
    turn ^= 1U;
    if (lane_index() == 0) sums[warp_index()] = value;
    meet_block();
    uint32_t sum = 0;
    for (unsigned warp = 0; warp < kCandidateWarps; ++warp) sum += sums[warp];
    return sum;
  }
};

// A thread's entries: logits as keys, and whose they are. Key 0: there is none.
struct Entries {
  uint32_t keys[kThreadEntries];
  uint32_t tokens[kThreadEntries];
};

// The last candidate in the order of likelihood: what is likelier is one as well.
struct LastCandidate {
  uint32_t key;
  uint32_t token;

  GPU_FUNCTION bool takes(uint32_t other_key, uint32_t other_token) const {
    return other_key > key || (other_key == key && other_token <= token);
  }
};

GPU_FUNCTION uint32_t count_from(const Entries& entries, uint32_t key) {
  uint32_t count = 0;
  GPU_UNROLL for (unsigned index = 0; index < kThreadEntries; ++index) {
    count += entries.keys[index] >= key ? 1U : 0U;
  }
  return count;
}

// Among those of one key, of which there are too many, the `wanted` lowest tokens.
GPU_FUNCTION uint32_t last_of_equals(const Entries& entries, uint32_t key, uint32_t wanted,
                                     BlockSums& sum) {
  uint32_t last = 0;
  GPU_KEEP_LOOP for (uint32_t bit = 0x40000000U; bit != 0; bit >>= 1U) {
    const uint32_t tried = last | (bit - 1);
    uint32_t count = 0;
    GPU_UNROLL for (unsigned index = 0; index < kThreadEntries; ++index) {
      const bool counts = entries.keys[index] == key && entries.tokens[index] <= tried;
      count += counts ? 1U : 0U;
    }
    if (sum(count) < wanted) last |= bit;
  }
  return last;
}

GPU_FUNCTION LastCandidate find_last(const Entries& entries, BlockSums& sum) {
  constexpr uint32_t kWanted = kGpuCandidates;
  constexpr uint32_t kAnyToken = 0xFFFFFFFFU;
  if (sum(count_from(entries, 1)) <= kWanted) return {1, kAnyToken};
  // The greatest key that at least as many as wanted have or exceed.
  uint32_t key = 0;
  GPU_KEEP_LOOP for (uint32_t bit = 0x80000000U; bit != 0; bit >>= 1U) {
    const uint32_t count = sum(count_from(entries, key | bit));
    if (count < kWanted) continue;
    key |= bit;
    if (count == kWanted) return {key, kAnyToken};
  }
  // No key exceeds the greatest that there can be: one of a NaN is not kept.
  const uint32_t ahead = sum(count_from(entries, key + 1));
  return {key, last_of_equals(entries, key, kWanted - ahead, sum)};
}

// Puts the candidates into shared memory, in no order that matters but always the same. Returns how
// many there are; all threads see them then.
GPU_FUNCTION uint32_t keep_candidates(const Entries& entries, const LastCandidate& last,
                                      CandidateShared& shared) {
  uint32_t own = 0;
  GPU_UNROLL for (unsigned index = 0; index < kThreadEntries; ++index) {
    own += last.takes(entries.keys[index], entries.tokens[index]) ? 1U : 0U;
  }
  uint32_t up_to_own = own;
  for (unsigned distance = 1; distance < kWarpThreads; distance *= 2) {
    const uint32_t before = from_lane(up_to_own, (lane_index() - distance) % kWarpThreads);
    if (lane_index() >= distance) up_to_own += before;
  }
  if (lane_index() == kWarpThreads - 1) shared.chosen[warp_index()] = up_to_own;
  meet_block();
  uint32_t place = up_to_own - own;
  uint32_t count = 0;
  for (unsigned warp = 0; warp < kCandidateWarps; ++warp) {
    if (warp < warp_index()) place += shared.chosen[warp];
    count += shared.chosen[warp];
  }
  GPU_UNROLL for (unsigned index = 0; index < kThreadEntries; ++index) {
    if (!last.takes(entries.keys[index], entries.tokens[index])) continue;
    shared.keys[place] = entries.keys[index];
    shared.tokens[place++] = entries.tokens[index];
  }
  meet_block();
  return count;
}

// The words that a row's search leaves between its two kernels.
struct SegmentWords {
  uint32_t* keys;        // [segment][candidate]
  uint32_t* tokens;      // [segment][candidate]
  uint32_t* not_finite;  // [segment]
};

GPU_FUNCTION SegmentWords words_of(const GpuCandidates& find, unsigned row, unsigned segments) {
  uint32_t* words = find.words + row * gpu_candidate_words(find.columns);
  const size_t candidates = segments * kGpuCandidates;
  return {words, words + candidates, words + 2 * candidates};
}

GPU_KERNEL_OF(kCandidateThreads) void search_segments(GpuCandidates find) {
  follow_launches();
  auto& shared = *reinterpret_cast<CandidateShared*>(shared_memory());
  BlockSums sum{shared};
  const unsigned segment = block_column();
  const unsigned begin = segment * static_cast<unsigned>(kGpuCandidateSegment);
  const unsigned rows = *find.row_count;
  for (unsigned row = block_row(); row < rows; row += block_rows()) {
    const float* logits = find.logits + row * find.stride;
    Entries entries;
    uint32_t wrong = 0;
    GPU_UNROLL for (unsigned index = 0; index < kThreadEntries; ++index) {
      const unsigned token = begin + index * kCandidateThreads + thread_index();
      const bool present = token < find.columns;
      const float logit = present ? logits[token] : 0.0F;
      wrong += is_finite(logit) ? 0U : 1U;
      entries.keys[index] = present ? likelihood_key(logit) : 0U;
      entries.tokens[index] = token;
    }
    const uint32_t not_finite = sum(wrong);
    const uint32_t count = keep_candidates(entries, find_last(entries, sum), shared);
    const SegmentWords words = words_of(find, row, block_columns());
    const unsigned own = thread_index();
    if (own < kGpuCandidates) {
      const size_t place = segment * kGpuCandidates + own;
      words.keys[place] = own < count ? shared.keys[own] : 0U;
      words.tokens[place] = own < count ? shared.tokens[own] : 0U;
    }
    if (own == 0) words.not_finite[segment] = not_finite;
  }
}

// A thread's entries of one turn: those that were kept, then what the segments have from `begin`
// on.
GPU_FUNCTION void load_found(const SegmentWords& words, unsigned begin, unsigned end, unsigned kept,
                             const CandidateShared& shared, Entries& entries) {
  GPU_UNROLL for (unsigned index = 0; index < kThreadEntries; ++index) {
    const unsigned entry = index * kCandidateThreads + thread_index();
    const unsigned place = begin + entry - kept;
    entries.keys[index] = 0;
    entries.tokens[index] = 0;
    if (entry < kept) {
      entries.keys[index] = shared.keys[entry];
      entries.tokens[index] = shared.tokens[entry];
    } else if (place < end) {
      entries.keys[index] = words.keys[place];
      entries.tokens[index] = words.tokens[place];
    }
  }
}

// Every thread looks how many are ahead of its own candidate.
GPU_FUNCTION void put_in_order(CandidateShared& shared, uint32_t count) {
  const unsigned own = thread_index();
  if (own < count) {
    const LastCandidate self = {shared.keys[own], shared.tokens[own]};
    unsigned ahead = 0;
    for (unsigned other = 0; other < count; ++other) {
      ahead += self.takes(shared.keys[other], shared.tokens[other]) ? 1U : 0U;
    }
    shared.ordered_keys[ahead - 1] = self.key;  // it takes itself, too
    shared.ordered_tokens[ahead - 1] = self.token;
  }
  meet_block();
}

GPU_KERNEL_OF(kCandidateThreads) void merge_segments(GpuCandidates find) {
  follow_launches();
  auto& shared = *reinterpret_cast<CandidateShared*>(shared_memory());
  BlockSums sum{shared};
  const auto segments =
      static_cast<unsigned>(divide_up<size_t>(find.columns, kGpuCandidateSegment));
  const unsigned end = segments * static_cast<unsigned>(kGpuCandidates);
  const unsigned rows = *find.row_count;
  const unsigned own = thread_index();
  GpuCandidateRow* results = behind(find.rows, find.result_offset);
  for (unsigned row = block_row(); row < rows; row += block_rows()) {
    const SegmentWords words = words_of(find, row, segments);
    uint32_t count = 0;
    for (unsigned begin = 0; begin < end;) {
      Entries entries;
      load_found(words, begin, end, count, shared, entries);
      begin += static_cast<unsigned>(kGpuCandidateSegment) - count;
      // Its sums are a barrier between these loads and what is kept next.
      const LastCandidate last = find_last(entries, sum);
      count = keep_candidates(entries, last, shared);
    }
    put_in_order(shared, count);
    GpuCandidateRow& found = results[row];
    if (own < count) {
      found.logits[own] = logit_of_key(shared.ordered_keys[own]);
      found.tokens[own] = static_cast<int32_t>(shared.ordered_tokens[own]);
    }
    if (own == 0) {
      uint32_t not_finite = 0;
      for (unsigned segment = 0; segment < segments; ++segment) {
        not_finite += words.not_finite[segment];
      }
      found.count = count;
      if (find.picks != nullptr) find.picks[row] = shared.ordered_tokens[0];
      if (find.maxima != nullptr) find.maxima[row] = logit_of_key(shared.ordered_keys[0]);
      found.not_finite = not_finite;
    }
  }
}

}  // namespace

void gpu_find_candidates(void* stream, const GpuCandidates& find) {
  const auto segments =
      static_cast<unsigned>(divide_up<size_t>(find.columns, kGpuCandidateSegment));
  Grid grid = {.columns = segments,
               .rows = find.grid_rows,
               .threads = kCandidateThreads,
               .shared_bytes = sizeof(CandidateShared)};
  launch(stream, grid, search_segments, find);
  grid.columns = 1;
  launch(stream, grid, merge_segments, find);
}

}  // namespace lockstep
