// A warp's sums over a unit of columns whose activations the block shares. Included by
// many_product.inl.h.
//
// The arithmetic of an element is that of product_units.inl.h, operation by operation. Others are
// who computes it, and where activations come from: the block's warps take the same unit at the
// same time, each with 32 rows of its own, and read the unit's activations from shared memory. What
// takes the bias away depends on the activations alone, so it is computed once for all warps.
#pragma once

#include "engine/kernels/cuda/product_units.inl.h"

namespace lockstep {
namespace {

// The activations of a unit in shared memory: a row per token.
template <Format kFormat>
struct ManyInputs {
  static constexpr GpuLayout kLayout = gpu_layout(kFormat);
  static constexpr unsigned kColumns = kLayout.unit_columns();
  // The padding lets lanes read from different banks at once.
  static constexpr unsigned kRowBytes =
      kColumns * sizeof(uint16_t) + (kLayout.scale_columns == 16 ? 32 : 64);
  // A token's sums of x, each over the columns of a scale.
  static constexpr unsigned kSums = kIsBiased<kFormat> ? kColumns / kLayout.scale_columns : 0;
};

// The addresses at which a lane begins to read the unit's activations, and their sums.
struct ManyPlace {
  const std::byte* inputs;
  const std::byte* begins;
};

template <unsigned kGroups>
using ManySums = float[kBlockPanels][kGroups][4];

// Groups of tokens whose tile products are under way at once.
constexpr unsigned kGroupsAtOnce = 2;

template <Format kFormat>
GPU_FUNCTION const std::byte* many_inputs(const ManyPlace& place, unsigned group, unsigned column) {
  return place.inputs + group * (kGroupTokens * ManyInputs<kFormat>::kRowBytes) +
         column * sizeof(uint16_t);
}

// Reads what the sums of products begin at, or minimums are multiplied by, for the columns of the
// unit's scale `scale`.
template <unsigned kGroups>
GPU_FUNCTION void read_begin(const ManyPlace& place, unsigned group, unsigned scale,
                             float (&begin)[4]) {
  const Words4 words = load_16(place.begins + (scale * kGroups + group) * (4 * sizeof(Words4)));
  GPU_UNROLL
  for (unsigned index = 0; index < 4; ++index) begin[index] = bits_to_float(words.words[index]);
}

// A piece of a unit's activations: 32 columns of a group, of which a lane copies the 16 bytes that
// it reads for tile products where 32 columns share a scale. The block's warps share the pieces
// out, always in the same way.
struct ManyPiece {
  unsigned group;
  unsigned column;  // of the unit
};
// The warp's piece `turn`, of a block of kWarps; 0: of any number, and then it may be beyond the
// last. Of a number that is known, what pieces are apart is as well.
template <Format kFormat, unsigned kWarps>
GPU_FUNCTION ManyPiece many_piece(unsigned turn) {
  constexpr unsigned kOfRow = ManyInputs<kFormat>::kColumns / 32;
  if constexpr (kWarps == 0) {
    const unsigned index = warp_index() + turn * (thread_count() / kWarpThreads);
    return {index / kOfRow, index % kOfRow * 32};
  } else {
    static_assert(kOfRow % kWarps == 0 || kWarps % kOfRow == 0);
    const unsigned warp = warp_index() % kWarps;
    return {warp / kOfRow + turn * kWarps / kOfRow,
            warp % kOfRow * 32 + turn * kWarps % kOfRow * 32};
  }
}
// How many turns a block of kWarps takes.
template <Format kFormat, unsigned kGroups, unsigned kWarps>
GPU_FUNCTION unsigned many_turns() {
  constexpr unsigned kPieces = ManyInputs<kFormat>::kColumns / 32 * kGroups;
  if constexpr (kWarps == 0) {
    return divide_up(kPieces, thread_count() / kWarpThreads);
  } else {
    static_assert(kPieces % kWarps == 0);
    return kPieces / kWarps;
  }
}

// The byte of a stage at which the lane's 16 of a piece lie.
template <Format kFormat>
GPU_FUNCTION unsigned many_piece_byte(const ManyPiece& piece) {
  return (piece.group * kGroupTokens + lane_index() / 4) * ManyInputs<kFormat>::kRowBytes +
         piece.column * 2 + lane_index() % 4 * 16;
}

// Forms for some pieces the sums of each token's x over the columns of a scale, times what takes
// the bias away, or as they are. If 16 columns share a scale, a piece has two.
template <Format kFormat, unsigned kPieces>
GPU_FUNCTION void multiply_taker(const std::byte* inputs, const ManyPiece (&pieces)[kPieces],
                                 float (&sums)[kPieces][2][4]) {
  using I = ManyInputs<kFormat>;
  constexpr bool kIsNarrow = I::kLayout.scale_columns == 16;
  constexpr uint32_t kTaker = has_minimums(kFormat) ? 0x3F803F80U : kBiasTaken<kFormat>;
  const uint32_t taker[4] = {kTaker, kTaker, kTaker, kTaker};
  uint32_t b[kPieces][2][2];
  GPU_UNROLL
  for (unsigned index = 0; index < kPieces; ++index) {
    const std::byte* const own = inputs + many_piece_byte<kFormat>(pieces[index]);
    if constexpr (kIsNarrow) {
      GPU_UNROLL
      for (unsigned step = 0; step < 2; ++step) {
        const Words2 x = load_8(own - lane_index() % 4 * 8 + step * 32);
        b[index][step][0] = x.words[0];
        b[index][step][1] = x.words[1];
      }
    } else {
      const Words4 x = load_16(own);
      GPU_UNROLL
      for (unsigned word = 0; word < 4; ++word) b[index][word / 2][word % 2] = x.words[word];
    }
  }
  GPU_UNROLL
  for (unsigned step = 0; step < 2; ++step) {
    GPU_UNROLL
    for (unsigned index = 0; index < kPieces; ++index) {
      multiply_tile(sums[index][kIsNarrow ? step : 0], taker, b[index][step]);
    }
  }
}

// Leaves what read_begin() reads, of the pieces that the warp has copied. kWarps: of the block; 0
// if it is not known.
template <Format kFormat, unsigned kGroups, unsigned kWarps>
GPU_FUNCTION void form_begins(const std::byte* inputs, std::byte* begins) {
  using I = ManyInputs<kFormat>;
  constexpr unsigned kScales = 32 / I::kLayout.scale_columns;  // of a piece
  constexpr unsigned kAtOnce = 4;
  const unsigned turns = many_turns<kFormat, kGroups, kWarps>();
  GPU_UNROLL_BY((kWarps > 0 ? 4 : 1))
  for (unsigned turn = 0; turn < turns; turn += kAtOnce) {
    ManyPiece pieces[kAtOnce];
    GPU_UNROLL
    for (unsigned index = 0; index < kAtOnce; ++index) {
      // Beyond the last comes the first of them once more.
      pieces[index] = many_piece<kFormat, kWarps>(turn + index < turns ? turn + index : turn);
      if (pieces[index].group >= kGroups) pieces[index] = many_piece<kFormat, kWarps>(0);
    }
    float sums[kAtOnce][2][4] = {};
    multiply_taker<kFormat>(inputs, pieces, sums);
    if (lane_index() < 4) {  // all rows are alike: lanes of two write for all
      GPU_UNROLL
      for (unsigned index = 0; index < kAtOnce * kScales; ++index) {
        const ManyPiece& piece = pieces[index / kScales];
        const unsigned scale = piece.column / I::kLayout.scale_columns + index % kScales;
        const float(&own)[4] = sums[index / kScales][index % kScales];
        store_16(begins + ((scale * kGroups + piece.group) * 4 + lane_index()) * sizeof(Words4),
                 {{float_to_bits(own[0]), float_to_bits(own[1]), float_to_bits(own[2]),
                   float_to_bits(own[3])}});
      }
    }
  }
}

// Weights that are no quants: 32 columns of a tile.
template <Format kFormat, unsigned kGroups>
GPU_FUNCTION void add_many_plain(const ManyPlace& place, const std::byte* stage, unsigned half,
                                 ManySums<kGroups>& sums) {
  constexpr unsigned kParts = Stage<kFormat>::kParts;
  uint32_t a[kBlockPanels][2][kParts][4];
  read_half<kFormat>(stage, 0, half, a);
  GPU_UNROLL
  for (unsigned first = 0; first < kGroups; first += kGroupsAtOnce) {
    Words4 x[kGroupsAtOnce];
    GPU_UNROLL
    for (unsigned pair = 0; pair < kGroupsAtOnce; ++pair) {
      x[pair] = load_16(many_inputs<kFormat>(place, first + pair, half * 32));
    }
    GPU_UNROLL
    for (unsigned part = 0; part < kParts; ++part) {
      GPU_UNROLL
      for (unsigned step = 0; step < 2; ++step) {
        GPU_UNROLL
        for (unsigned pair = 0; pair < kGroupsAtOnce; ++pair) {
          const uint32_t b[2] = {x[pair].words[step * 2], x[pair].words[step * 2 + 1]};
          GPU_UNROLL
          for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
            multiply_tile(sums[panel][first + pair], a[panel][step][part], b);
          }
        }
      }
    }
  }
}

// Products of one scale's columns, of some groups and both panels: kSteps tile products each.
template <Format kFormat, unsigned kGroups, unsigned kSteps>
GPU_FUNCTION void add_many_products(const ManyPlace& place, unsigned first, unsigned scale,
                                    const uint32_t (&a)[kBlockPanels][kSteps][1][4],
                                    const uint32_t (&b)[kGroupsAtOnce][kSteps][2],
                                    const Scale (&scales)[kBlockPanels][2],
                                    ManySums<kGroups>& sums) {
  constexpr bool kMinimums = has_minimums(kFormat);
  float begins[kGroupsAtOnce][4] = {};
  if constexpr (kIsBiased<kFormat>) {
    GPU_UNROLL
    for (unsigned pair = 0; pair < kGroupsAtOnce; ++pair) {
      read_begin<kGroups>(place, first + pair, scale, begins[pair]);
    }
  }
  float products[kGroupsAtOnce][kBlockPanels][4] = {};
  GPU_UNROLL
  for (unsigned step = 0; step < kSteps; ++step) {
    GPU_UNROLL
    for (unsigned pair = 0; pair < kGroupsAtOnce; ++pair) {
      GPU_UNROLL
      for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
        if (kIsBiased<kFormat> && !kMinimums && step == 0) {
          multiply_tile_from(begins[pair], a[panel][0][0], b[pair][0], products[pair][panel]);
        } else {
          multiply_tile(products[pair][panel], a[panel][step][0], b[pair][step]);
        }
      }
    }
  }
  GPU_UNROLL
  for (unsigned pair = 0; pair < kGroupsAtOnce; ++pair) {
    GPU_UNROLL
    for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
      const Scale& upper = scales[panel][0];
      const Scale& lower = scales[panel][1];
      float(&own)[4] = sums[panel][first + pair];
      add_scaled(own, products[pair][panel], upper.scale, lower.scale);
      if constexpr (kMinimums) add_scaled(own, begins[pair], upper.minimum, lower.minimum);
    }
  }
}

// Quants whose 32 columns share a scale: those of half `half` of tile `tile`.
template <Format kFormat, unsigned kGroups>
GPU_FUNCTION void add_many_wide(const ManyPlace& place, const std::byte* stage, unsigned tile,
                                unsigned half, const TileScales& tile_scales,
                                ManySums<kGroups>& sums) {
  uint32_t a[kBlockPanels][2][1][4];
  Scale scales[kBlockPanels][2];
  read_half<kFormat>(stage, tile, half, a);
  GPU_UNROLL
  for (unsigned row = 0; row < kBlockPanels * 2; ++row) {
    scales[row / 2][row % 2] = tile_scales[row / 2][row % 2].halves[half];
  }
  GPU_UNROLL
  for (unsigned first = 0; first < kGroups; first += kGroupsAtOnce) {
    uint32_t b[kGroupsAtOnce][2][2];
    GPU_UNROLL
    for (unsigned pair = 0; pair < kGroupsAtOnce; ++pair) {
      const Words4 x =
          load_16(many_inputs<kFormat>(place, first + pair, tile * kGpuTileColumns + half * 32));
      GPU_UNROLL
      for (unsigned word = 0; word < 4; ++word) b[pair][word / 2][word % 2] = x.words[word];
    }
    add_many_products<kFormat, kGroups, 2>(place, first, tile * 2 + half, a, b, scales, sums);
  }
}

// Quants whose 16 columns share a scale: those of step `step` of tile `tile`.
template <Format kFormat, unsigned kGroups>
GPU_FUNCTION void add_many_narrow(const ManyPlace& place, const std::byte* stage, unsigned tile,
                                  unsigned step, const StepScales& scales,
                                  ManySums<kGroups>& sums) {
  static_assert(kIsBiased<kFormat>);
  uint32_t a[kBlockPanels][1][1][4];
  GPU_UNROLL
  for (unsigned panel = 0; panel < kBlockPanels; ++panel) {
    read_weights<kFormat>(stage, panel, tile, step, a[panel][0]);
  }
  GPU_UNROLL
  for (unsigned first = 0; first < kGroups; first += kGroupsAtOnce) {
    uint32_t b[kGroupsAtOnce][1][2];
    GPU_UNROLL
    for (unsigned pair = 0; pair < kGroupsAtOnce; ++pair) {
      const Words2 x =
          load_8(many_inputs<kFormat>(place, first + pair, tile * kGpuTileColumns + step * 16));
      b[pair][0][0] = x.words[0];
      b[pair][0][1] = x.words[1];
    }
    add_many_products<kFormat, kGroups, 1>(place, first, tile * kGpuSteps + step, a, b, scales,
                                           sums);
  }
}

// Tile `tile` of the unit, of whose columns there are `columns`; what is not there is left out by
// the columns of a scale, or by 32.
template <Format kFormat, unsigned kGroups>
GPU_FUNCTION void add_many_tile(const ManyPlace& place, const std::byte* stage, unsigned tile,
                                unsigned columns, ManySums<kGroups>& sums) {
  if constexpr (gpu_layout(kFormat).scale_columns == 16) {
    constexpr unsigned kSteps = kNarrowSteps<kFormat>;
    NarrowScales<kFormat> scales;
    GPU_UNROLL
    for (unsigned step = 0; step < kGpuSteps; ++step) {
      if (step % kSteps == 0) read_narrow_scales<kFormat>(stage, step, scales);
      add_many_narrow<kFormat, kGroups>(place, stage, tile, step, scales[step % kSteps], sums);
    }
  } else if constexpr (gpu_layout(kFormat).quant_bits == 16) {
    GPU_UNROLL
    for (unsigned half = 0; half < 2; ++half) {
      if (half * 32 >= columns) return;
      add_many_plain<kFormat, kGroups>(place, stage, half, sums);
    }
  } else {
    TileScales scales;
    read_tile_scales<kFormat>(stage, tile, scales);
    GPU_UNROLL
    for (unsigned half = 0; half < 2; ++half) {
      if (tile * kGpuTileColumns + half * 32 >= columns) return;
      add_many_wide<kFormat, kGroups>(place, stage, tile, half, scales, sums);
    }
  }
}

template <Format kFormat, unsigned kGroups>
GPU_FUNCTION void add_many_unit(const ManyPlace& place, std::byte* stage, unsigned columns,
                                ManySums<kGroups>& sums) {
  constexpr unsigned kTiles = gpu_layout(kFormat).unit_tiles;
  if constexpr (Stage<kFormat>::kUnpacks) {
    const RowScales<kFormat> own = read_row_scales<kFormat>(stage);
    GPU_KEEP_LOOP
    for (unsigned tile = 0; tile < kTiles; ++tile) {
      meet_warp();  // what lies there has been read
      unpack_scales<kFormat>(own, tile, stage);
      meet_warp();
      add_many_tile<kFormat, kGroups>(place, stage, tile, columns, sums);
    }
  } else {
    GPU_KEEP_LOOP
    for (unsigned tile = 0; tile < kTiles; ++tile) {
      add_many_tile<kFormat, kGroups>(place, stage, tile, columns, sums);
    }
  }
}

}  // namespace
}  // namespace lockstep
