// As many_sums.inl.h, by products of warp groups. Included by many_product.inl.h.
#pragma once

#include "engine/kernels/cuda/many_sums.inl.h"
#include "engine/kernels/cuda/wide_units.inl.h"

namespace lockstep {
namespace {

// Puts the activations of the first unit in their places, at `inputs`, and reads the first tile of
// the next one. `work`: done while they come.
template <Format kFormat, unsigned kGroups, bool kIsSplit, typename Work>
GPU_FUNCTION void begin_wide_inputs(const WidePieces<kFormat, kGroups>& pieces,
                                    const ManyWalk<kIsSplit>& walk, const ManyWalk<kIsSplit>& next,
                                    std::byte* inputs, WideHeld<kFormat, kGroups>& held,
                                    const Work& work) {
  constexpr unsigned kTiles = gpu_layout(kFormat).unit_tiles;
  WideHeld<kFormat, kGroups> first[kTiles] = {};
  if (!walk.is_end()) {
    GPU_UNROLL
    for (unsigned tile = 0; tile < kTiles; ++tile) {
      load_wide_inputs<kFormat, kGroups>(pieces, walk.unit, tile, first[tile]);
    }
  }
  if (!next.is_end()) load_wide_inputs<kFormat, kGroups>(pieces, next.unit, 0, held);
  work();
  if (walk.is_end()) return;
  GPU_UNROLL
  for (unsigned tile = 0; tile < kTiles; ++tile) {
    store_wide_inputs<kFormat, kGroups>(pieces, inputs, tile, first[tile]);
  }
}

// The lane's sums of all sums, in the pair's memory: the pair's 32 rows, token after token.
template <unsigned kGroups, typename Work>
GPU_FUNCTION void for_each_total(float* pair, unsigned panel, const Work& work) {
  GPU_UNROLL
  for (unsigned group = 0; group < kGroups; ++group) {
    GPU_UNROLL
    for (unsigned index = 0; index < 4; ++index) {
      work(pair[many_token(group, index) * kSumsStride + many_row(panel, index)], group, index);
    }
  }
}

// As add_many_units(), by products of warp groups; `total`: the pair's memory. `work`: done while
// the first activations come.
template <Format kFormat, unsigned kGroups, bool kIsSplit, typename Work>
GPU_FUNCTION void add_wide_units(const WideWeights& weights,
                                 const WidePieces<kFormat, kGroups>& pieces, size_t columns,
                                 ManyWalk<kIsSplit> walk, ManyWalk<kIsSplit> asked,
                                 PanelSums<kGroups>& sums, float* total, const Work& work) {
  using M = WideShared<kFormat, kGroups>;
  using S = Stage<kFormat>;
  constexpr unsigned kTiles = gpu_layout(kFormat).unit_tiles;
  std::byte* const inputs = shared_memory() + M::kInputs;
  std::byte* const stages = shared_memory() + M::kWeights + warp_index() / 2 * M::kStageBytes;
  const GroupMatrix matrix = group_matrix<kGroups>(inputs);
  WideTaker taker[1];
  make_wide_taker<kFormat>(taker[0]);
  ManyWalk<kIsSplit> next = walk;
  if (!next.is_end()) next.advance();
  WideHeld<kFormat, kGroups> held = {};
  begin_wide_inputs<kFormat, kGroups>(pieces, walk, next, inputs, held, work);
  unsigned stage = 0;
  unsigned side = 0;  // in which half of the space for them the unit's activations are
  while (!walk.is_end()) {
    show_to_group_products();
    meet_block();
    wait_for_copies<M::kStages - 2>();
    meet_warp();
    const unsigned free = stage == 0 ? M::kStages - 1 : stage - 1;
    if (!asked.is_end()) {
      begin_wide_weights<kFormat>(weights, asked.unit, stages + free * S::kBytes);
      asked.advance();
    }
    close_copies();
    ManyWalk<kIsSplit> after = next;
    if (!next.is_end()) after.advance();
    std::byte* const own = stages + stage * S::kBytes;
    const GroupMatrix unit = group_matrix_behind(matrix, side * M::kInputBytes);
    const unsigned left = static_cast<unsigned>(columns) - walk.unit * kTiles * kGpuTileColumns;
    // All that is known of a tile beforehand is then in the instructions.
    GPU_UNROLL_BY((kTiles <= 2 ? kTiles : 1))
    for (unsigned tile = 0; tile < kTiles; ++tile) {
      add_wide_tile<kFormat, kGroups>(unit, own, weights.panel, tile, left, taker, sums, [&] {
        if (next.is_end()) return;
        store_wide_inputs<kFormat, kGroups>(pieces, inputs + (1 - side) * M::kInputBytes, tile,
                                            held);
        const bool is_last = tile + 1 == kTiles;
        if (is_last && after.is_end()) return;
        load_wide_inputs<kFormat, kGroups>(pieces, is_last ? after.unit : next.unit,
                                           is_last ? 0 : tile + 1, held);
      });
    }
    if (!kIsSplit && walk.ends_sum()) {
      for_each_total<kGroups>(total, weights.panel,
                              [&](float& value, unsigned group, unsigned index) {
                                value += sums[group][index];
                                sums[group][index] = 0;
                              });
    }
    walk = next;
    next = after;
    stage = stage + 1 == M::kStages ? 0 : stage + 1;
    side = 1 - side;
  }
}

}  // namespace
}  // namespace lockstep
