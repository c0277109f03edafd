// Attention of prompted tokens (gpu_attention.h). Included after gpu_code.h.
#pragma once

#include "engine/kernels/cuda/attention_walk.inl.h"
#include "engine/kernels/cuda/prompt_tiles.inl.h"
#include "engine/kernels/gpu_attention.h"

namespace lockstep {
namespace {

// Attention of prompted tokens by tile products, with the bits of attend_tiles, where a KV head has
// enough query heads for a block: its warps share keys and values, which are copied into shared
// memory ahead of them.

// One for what is computed on, the others for what is on its way: a page's keys, then its values.
// Not measured.
constexpr unsigned kRingSlots = 3;
// With more, not every GPU has the shared memory.
constexpr unsigned kMostRingDimensions = 128;

template <KvFormat kFormat>
constexpr bool kHasRing = kFormat == KvFormat::kF16 || kFormat == KvFormat::kBf16;

template <unsigned kBlocks>
constexpr unsigned ring_slot_bytes() {
  constexpr unsigned kDimensions = kBlocks * kBlockDimensions;
  constexpr unsigned kKeys = kDimensions / kKeyPiece * StagedPage::kKeyPitch;
  constexpr unsigned kValues = kSlots / 2 * (kDimensions * 4 + StagedPage::kPadBytes);
  return kKeys > kValues ? kKeys : kValues;
}

template <unsigned kBlocks>
constexpr unsigned tile_query_bytes() {
  return kTileWarps * kBlocks * 2 * kWarpThreads * sizeof(Words4);
}

// The copies of a block for a tile: turn 2 * i is the keys of the tile's page i, the next the
// values.
struct RingTurns {
  const GpuKvLayer* kv;
  const uint32_t* pages;  // of the tile's first
  unsigned kv_head;
  unsigned key_dimensions;
  unsigned value_dimensions;
  unsigned count;
  std::byte* slots;
  unsigned slot_bytes;

  GPU_FUNCTION std::byte* slot(unsigned turn) const {
    return slots + turn % kRingSlots * slot_bytes;
  }
};

GPU_FUNCTION unsigned value_row_bytes(unsigned dimensions) {
  return round_up(dimensions, 16U) * 4;
}

// By all threads; a turn beyond the last is an empty group.
template <KvFormat kFormat>
GPU_FUNCTION void begin_turn(const RingTurns& turns, unsigned turn) {
  if (turn < turns.count) {
    const KvBlocks blocks = kv_blocks<kFormat>(*turns.kv, turns.kv_head, turns.pages[turn / 2]);
    const bool keys = turn % 2 == 0;
    const std::byte* from = keys ? blocks.keys : blocks.values;
    const unsigned row_bytes = keys ? kSlots * 16 : value_row_bytes(turns.value_dimensions);
    const unsigned rows = keys ? turns.key_dimensions / kKeyPiece : kSlots / 2;
    std::byte* to = turns.slot(turn);
    for (unsigned at = thread_index() * 16; at < rows * row_bytes;
         at += kTileWarps * kWarpThreads * 16) {
      begin_copy_16(to + at + at / row_bytes * StagedPage::kPadBytes, from + at);
    }
  }
  close_copies();
}

// Waits for a turn's copies, and begins those of the one whose slot is free: everybody is done with
// the turn before.
template <KvFormat kFormat>
GPU_FUNCTION void await_turn(const RingTurns& turns, unsigned turn) {
  wait_for_copies<kRingSlots - 2>();
  meet_block();
  begin_turn<kFormat>(turns, turn + kRingSlots - 1);
}

// `computes`: a warp without a head copies for the others. `kExact`: heads have all dimensions of
// the blocks, known as the kernel is compiled.
template <KvFormat kFormat, unsigned kBlocks, bool kExact, bool kShaped>
GPU_FUNCTION void attend_tile_by_ring(const GpuAttention& a, const TilePlace& tile, bool computes) {
  const uint32_t* table = a.batch.pages + a.batch.page_tables[a.batch.sequences[tile.token]];
  const unsigned keys_end = tile_keys_end<kShaped>(a, tile);
  const unsigned first_page = first_key<kShaped>(a, tile.position) / kSlots;
  const unsigned pages = divide_up(keys_end, kSlots) - first_page;
  constexpr unsigned kDimensions = kBlocks * kBlockDimensions;
  const unsigned key_dimensions = kExact ? kDimensions : a.kv.key_dimension;
  const unsigned value_dimensions = kExact ? kDimensions : a.kv.value_dimension;
  const RingTurns turns = {&a.kv,
                           table + first_page,
                           block_heads(a, block_column(), kTileWarps).kv_head,
                           key_dimensions,
                           value_dimensions,
                           2 * pages,
                           shared_memory() + tile_query_bytes<kBlocks>(),
                           ring_slot_bytes<kBlocks>()};
  meet_block();  // the slots, as the last tile has left them, have been read
  for (unsigned turn = 0; turn + 1 < kRingSlots; ++turn) begin_turn<kFormat>(turns, turn);
  const Words4* fragments = nullptr;
  if (computes) fragments = load_tile_queries<kFormat, kBlocks>(a, tile);
  TileRowsState state;
  float outputs[kBlocks * 4][4] = {};
  for (unsigned index = 0; index < pages; ++index) {
    const unsigned page = first_page + index;
    const StagedPage staged = {turns.slot(2 * index), turns.slot(2 * index + 1), key_dimensions,
                               value_dimensions,
                               value_row_bytes(value_dimensions) + StagedPage::kPadBytes};
    float scores[kKeyTiles][4];
    await_turn<kFormat>(turns, 2 * index);
    if (computes) {
      score_tile<kFormat, kBlocks>(staged, tile, fragments, scores);
      scale_outputs<kBlocks>(weigh_tile<kShaped>(a, tile, page, scores, state), outputs);
    }
    await_turn<kFormat>(turns, 2 * index + 1);
    if (computes) {
      add_tile_values<kFormat, kBlocks>(staged, tile, keys_end - page * kSlots, scores, outputs);
    }
  }
  if (computes) write_tile<kBlocks, kShaped>(a, tile, state, outputs);
}

template <KvFormat kFormat, unsigned kBlocks, bool kExact, bool kShaped>
GPU_KERNEL_AT_ONCE(kTileWarps* kWarpThreads, 3)
void attend_tiles_by_ring(GpuAttention a) {
  follow_launches();
  const BlockHeads heads = block_heads(a, block_column(), kTileWarps);
  if (heads.count == 0) return;
  for (unsigned index = block_row(); index < a.batch.counts->prompt_tiles; index += block_rows()) {
    const TilePlace tile = tile_place<kShaped>(a, index, heads.first + warp_index());
    attend_tile_by_ring<kFormat, kBlocks, kExact, kShaped>(a, tile, warp_index() < heads.count);
  }
}

// The kernels' blocks of dimensions have space for keys and for values.
inline unsigned tile_dimensions(const GpuKvLayer& kv) {
  return kv.key_dimension > kv.value_dimension ? kv.key_dimension : kv.value_dimension;
}

// Fewer query heads would leave most of a block without any.
template <KvFormat kFormat>
bool takes_ring(const GpuAttention& a) {
  return kHasRing<kFormat> && a.group > 2 && tile_dimensions(a.kv) <= kMostRingDimensions;
}

template <KvFormat kFormat, unsigned kBlocks>
void launch_ring(void* stream, const GpuAttention& a) {
  const unsigned parts = divide_up(a.group, kTileWarps);
  constexpr unsigned kDimensions = kBlocks * kBlockDimensions;
  const bool exact = a.kv.key_dimension == kDimensions && a.kv.value_dimension == kDimensions;
  const auto plain = exact ? attend_tiles_by_ring<kFormat, kBlocks, true, false>
                           : attend_tiles_by_ring<kFormat, kBlocks, false, false>;
  launch(stream,
         {.columns = a.kv_head_count * parts,
          .rows = a.grid_rows,
          .threads = kTileWarps * kWarpThreads,
          .shared_bytes = tile_query_bytes<kBlocks>() + kRingSlots * ring_slot_bytes<kBlocks>()},
         is_shaped(a) ? attend_tiles_by_ring<kFormat, kBlocks, false, true> : plain, a);
}

template <KvFormat kFormat>
void launch_prompted(void* stream, const GpuAttention& a) {
  const unsigned dimensions = tile_dimensions(a.kv);
  if constexpr (kHasRing<kFormat>) {
    if (takes_ring<kFormat>(a)) {
      if (dimensions <= 64) return launch_ring<kFormat, 2>(stream, a);
      if (dimensions <= 96) return launch_ring<kFormat, 3>(stream, a);
      return launch_ring<kFormat, 4>(stream, a);
    }
  }
  if constexpr (kFormat != KvFormat::kF32) {
    if (dimensions <= 64) return launch_tiles<kFormat, 2>(stream, a);
    if (dimensions <= 96) return launch_tiles<kFormat, 3>(stream, a);
    if (dimensions <= 128) return launch_tiles<kFormat, 4>(stream, a);
    if (dimensions <= kGpuPromptTileDimensions) return launch_tiles<kFormat, 8>(stream, a);
  }
  launch_walk<kFormat>(stream, a, true);
}

}  // namespace

void gpu_attend_prompted(void* stream, const GpuAttention& attention) {
  with_kv_format(attention.kv.format,
                 [&]<KvFormat kFormat>() { launch_prompted<kFormat>(stream, attention); });
}

}  // namespace lockstep
