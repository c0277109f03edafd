// A step's keys and values in a block's shared memory: how they get there, all of them on their way
// at once. Included after gpu_code.h.
#pragma once

#include "engine/base/checked_math.h"
#include "engine/kernels/cuda/head_treatment.inl.h"
#include "engine/kernels/cuda/kv_elements.inl.h"
#include "engine/kernels/gpu_attention.h"

namespace lockstep {
namespace {

constexpr unsigned kAttendThreads = 256;
constexpr unsigned kAttendWarps = kAttendThreads / kWarpThreads;
constexpr unsigned kNoKey = 0xFFFFFFFFU;
constexpr unsigned kScaleDimensions = static_cast<unsigned>(kKvBlockDimensions);
constexpr unsigned kScaleBytes = 2;

// Those of a step's keys that a token sees, [begin, end), counted from the step's first.
struct SeenKeys {
  unsigned begin;
  unsigned end;
};

struct KeyStep {
  KvBlocks page;  // in the cache
  unsigned slot;  // of the page, the step's first
  SeenKeys seen;
  unsigned own;  // of these the one that is in no cache yet, or kNoKey

  // Whether a pair of neighbours is copied. Not the one with the token's own key: another block may
  // be writing that into the cache.
  GPU_FUNCTION bool copies(unsigned pair) const {
    return 2 * pair + 1 >= seen.begin && 2 * pair < seen.end && pair != own / 2;
  }
};

// The bytes of a step's keys, or of its values with their dimensions rounded up.
template <KvFormat kFormat>
constexpr unsigned stage_bytes(unsigned dimensions, unsigned slots) {
  const unsigned quants = dimensions * slots * kElementBytes<kFormat>;
  if (kFormat != KvFormat::kQ8_0) return quants;
  return quants + dimensions / kScaleDimensions * slots * kScaleBytes;
}

template <KvFormat kFormat>
constexpr unsigned stage_bytes_of_both(unsigned key_dimensions, unsigned value_dimensions,
                                       unsigned slots) {
  return stage_bytes<kFormat>(key_dimensions, slots) +
         stage_bytes<kFormat>(round_up(value_dimensions, 16U), slots);
}

template <KvFormat kFormat>
GPU_FUNCTION KvBlocks stage_blocks(std::byte* memory, unsigned key_dimensions,
                                   unsigned value_dimensions, unsigned slots) {
  return {memory, memory + stage_bytes<kFormat>(key_dimensions, slots), key_dimensions,
          value_dimensions, slots};
}

// Copies by all threads of the block, which are to be closed and waited for. 16 bytes are of one
// pair of neighbours, and so are 4 of scales.
template <KvFormat kFormat>
GPU_FUNCTION void begin_keys(const KeyStep& step, const KvBlocks& stage) {
  constexpr unsigned kParts = kElementBytes<kFormat>;  // 16 bytes each, of a pair's 8 dimensions
  const unsigned pairs = stage.slots / 2;
  const unsigned row = pairs * kParts;
  const unsigned part = thread_index() % row;
  if (step.copies(part / kParts)) {
    const std::byte* from = key_place<kFormat>(step.page, step.slot, 0) + part * 16;
    std::byte* to = stage.keys + part * 16;
    const unsigned rows = stage.key_dimensions / kKeyPiece;
    for (unsigned i = thread_index() / row; i < rows; i += kAttendThreads / row) {
      begin_copy_16(to + i * row * 16, from + i * (kSlots / 2 * kParts * 16));
    }
  }
  if constexpr (kFormat == KvFormat::kQ8_0) {
    const unsigned pair = thread_index() % pairs;
    if (!step.copies(pair)) return;
    unsigned dimension = thread_index() / pairs * kScaleDimensions;
    for (; dimension < stage.key_dimensions;
         dimension += kAttendThreads / pairs * kScaleDimensions) {
      begin_copy_4(reinterpret_cast<std::byte*>(key_scale(stage, 2 * pair, dimension)),
                   reinterpret_cast<const std::byte*>(
                       key_scale(step.page, step.slot + 2 * pair, dimension)));
    }
  }
}

template <KvFormat kFormat>
GPU_FUNCTION void begin_values(const KeyStep& step, const KvBlocks& stage) {
  const unsigned row_bytes = round_up(stage.value_dimensions, 16U) * 2 * kElementBytes<kFormat>;
  const unsigned parts = row_bytes / 16;
  const unsigned rows = kAttendThreads / parts;
  const unsigned part = thread_index() % parts * 16;
  const std::byte* from = value_place<kFormat>(step.page, step.slot, 0);
  unsigned pair = thread_index() / parts;
  for (pair = pair < rows ? pair : stage.slots; 2 * pair < step.seen.end; pair += rows) {
    if (!step.copies(pair)) continue;
    begin_copy_16(stage.values + pair * row_bytes + part, from + pair * row_bytes + part);
  }
  if constexpr (kFormat == KvFormat::kQ8_0) {
    const unsigned words = stage.value_dimensions / kScaleDimensions;
    for (unsigned i = thread_index(); i < words * stage.slots / 2; i += kAttendThreads) {
      if (!step.copies(i / words)) continue;
      begin_copy_4(
          reinterpret_cast<std::byte*>(value_scale(stage, 0, 0)) + i * 4,
          reinterpret_cast<const std::byte*>(value_scale(step.page, step.slot, 0)) + i * 4);
    }
  }
}

// One warp brings in place of those copies the neighbour of the token's own key before it, or of
// its value, if the step has one. Earlier passes have written it.
template <typename Part, KvFormat kFormat>
GPU_FUNCTION void copy_neighbour(const KeyStep& step, const KvBlocks& stage) {
  using Bits = KvBits<kFormat>;
  if (step.own == kNoKey || step.own % 2 == 0) return;
  const unsigned slot = step.own - 1;
  copy_dimensions(
      Part::dimensions(stage),
      [&](unsigned i) {
        return *reinterpret_cast<const Bits*>(
            Part::template place<kFormat>(step.page, step.slot + slot, i));
      },
      [&](unsigned i, Bits bits) {
        *reinterpret_cast<Bits*>(Part::template place<kFormat>(stage, slot, i)) = bits;
      });
  if constexpr (kFormat == KvFormat::kQ8_0) {
    const unsigned dimension = lane_index() * kScaleDimensions;
    if (dimension >= Part::dimensions(stage)) return;
    *Part::scale(stage, slot, dimension) = *Part::scale(step.page, step.slot + slot, dimension);
  }
}

}  // namespace
}  // namespace lockstep
