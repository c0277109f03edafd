// Attention of prompted tokens by tile products (gpu_attention.h): a warp takes a tile of 16 tokens
// and a query head; warps of a block have neighbouring heads, which mostly share their keys.
// Included after gpu_code.h.
#pragma once

#include "engine/kernels/cuda/attention_heads.inl.h"

namespace lockstep {
namespace {

constexpr unsigned kTileWarps = 4;
constexpr unsigned kTileRows = kGpuTileTokens;
constexpr unsigned kBlockDimensions = 32;  // that four lanes' pieces of 8 are
constexpr unsigned kKeyTiles = kSlots / 8;
constexpr unsigned kKeySteps = kSlots / 16;
constexpr float kLogarithmOfE = 1.44269504F;  // to base 2

template <KvFormat kFormat>
GPU_FUNCTION uint32_t pack_pair(float lower, float upper) {
  if constexpr (kFormat == KvFormat::kF16) {
    return to_half(lower) | static_cast<uint32_t>(to_half(upper)) << 16U;
  } else {
    return to_bf16(lower) | static_cast<uint32_t>(to_bf16(upper)) << 16U;
  }
}

template <KvFormat kFormat>
GPU_FUNCTION void multiply_pairs(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (kFormat == KvFormat::kF16) {
    multiply_half_tile(sums, a, b);
  } else {
    multiply_tile(sums, a, b);
  }
}

template <KvFormat kFormat>
GPU_FUNCTION float limited_query(float x) {
  constexpr float kMost = 65504.0F;
  if (kFormat != KvFormat::kF16) return x;
  return x > kMost ? kMost : x < -kMost ? -kMost : x;
}

// A page whose keys and values are in shared memory, of 16 bits: the rows of 8 dimensions of the
// keys and of 2 slots of the values each lie a pitch apart, so that lanes which read neighbouring
// rows meet in no bank.
struct StagedPage {
  const std::byte* keys;
  const std::byte* values;
  unsigned key_dimensions;
  unsigned value_dimensions;
  unsigned value_pitch;  // bytes

  static constexpr unsigned kPadBytes = 32;
  static constexpr unsigned kKeyPitch = kSlots * 16 + kPadBytes;
};

template <KvFormat kFormat>
GPU_FUNCTION Words4 pack_pairs(const float (&elements)[8]) {
  Words4 words;
  for (unsigned i = 0; i < 4; ++i) {
    words.words[i] = pack_pair<kFormat>(elements[2 * i], elements[2 * i + 1]);
  }
  return words;
}

// 8 dimensions of a key, two in a word.
template <KvFormat kFormat>
GPU_FUNCTION Words4 key_words(const StagedPage& page, unsigned slot, unsigned dimension) {
  if (dimension >= page.key_dimensions) return {};
  return load_16(page.keys + dimension / kKeyPiece * StagedPage::kKeyPitch + slot * 16);
}
template <KvFormat kFormat>
GPU_FUNCTION Words4 key_words(const KvBlocks& blocks, unsigned slot, unsigned dimension) {
  if (dimension >= blocks.key_dimensions) return {};
  if constexpr (kFormat == KvFormat::kQ8_0) {
    float elements[8];
    load_key<kFormat>(blocks, slot, dimension, elements);
    return pack_pairs<kFormat>(elements);
  } else {
    return load_16(key_place<kFormat>(blocks, slot, dimension));
  }
}

// 4 dimensions of two neighbours' values, of a dimension both in a word.
template <KvFormat kFormat>
GPU_FUNCTION Words4 value_pairs(const StagedPage& page, unsigned pair, unsigned dimension) {
  return load_16(page.values + pair * page.value_pitch + dimension * 4);
}
template <KvFormat kFormat>
GPU_FUNCTION Words4 value_pairs(const KvBlocks& blocks, unsigned pair, unsigned dimension) {
  if constexpr (kFormat == KvFormat::kQ8_0) {
    float elements[8];
    load_values<kFormat>(blocks, pair, dimension, elements);
    return pack_pairs<kFormat>(elements);
  } else {
    return load_16(value_place<kFormat>(blocks, 2 * pair, dimension));
  }
}

// Zeros in place of those in slots from `end` on, which may be no numbers. `kWhole`: there are
// none.
template <KvFormat kFormat, bool kWhole, typename Page>
GPU_FUNCTION Words4 value_words(const Page& page, unsigned pair, unsigned dimension, unsigned end) {
  if (dimension >= page.value_dimensions) return {};
  if (kWhole) return value_pairs<kFormat>(page, pair, dimension);
  if (2 * pair >= end) return {};
  Words4 words = value_pairs<kFormat>(page, pair, dimension);
  const uint32_t seen = 2 * pair + 1 < end ? 0xFFFFFFFFU : 0xFFFFU;
  for (uint32_t& word : words.words) word &= seen;
  return words;
}

// A lane has rows group and group + 8 of the tile.
struct TilePlace {
  unsigned token;     // the tile's first
  unsigned count;     // tokens
  unsigned position;  // of the first
  unsigned head;
  unsigned group;
  unsigned place;
  unsigned length;  // of the sequence, as last_key() wants it
};

template <bool kShaped>
GPU_FUNCTION TilePlace tile_place(const GpuAttention& a, unsigned index, unsigned head) {
  const unsigned token = a.batch.tile_tokens[index];
  return {.token = token,
          .count = a.batch.tile_counts[index],
          .position = a.batch.positions[token],
          .head = head,
          .group = lane_index() / 4,
          .place = lane_index() % 4,
          .length = length_of<kShaped>(a, a.batch.sequences[token])};
}

// Behind the last key that a token of the tile sees.
template <bool kShaped>
GPU_FUNCTION unsigned tile_keys_end(const GpuAttention& a, const TilePlace& tile) {
  return last_key<kShaped>(a, tile.position + tile.count - 1, tile.length) + 1;
}

// The state that a lane has of two rows.
struct TileRowsState {
  float maximum[2] = {-FLT_MAX, -FLT_MAX};
  float sum[2] = {0, 0};
};

// The queries as the products want them, in the lane's own places of shared memory. Their
// dimensions, and the keys', are taken in an order in which a lane has 8 neighbours: in turn j of
// block b, words 0 and 1 are of dimensions 32 * b + 8 * place + 4 * j and the next, words 2 and 3
// of the two after them.
template <KvFormat kFormat, unsigned kBlocks>
GPU_FUNCTION Words4* load_tile_queries(const GpuAttention& a, const TilePlace& tile) {
  auto* fragments = reinterpret_cast<Words4*>(shared_memory()) +
                    warp_index() * kBlocks * 2 * kWarpThreads + lane_index();
  const unsigned dimensions = a.kv.key_dimension;
  GPU_UNROLL
  for (unsigned turn = 0; turn < kBlocks * 2; ++turn) {
    const unsigned dimension = turn / 2 * kBlockDimensions + tile.place * 8 + turn % 2 * 4;
    Words4 words = {};
    GPU_UNROLL
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned row = tile.group + half * 8;
      if (row >= tile.count || dimension >= dimensions) continue;
      const Words4 four = load_16(a.queries + (tile.token + row) * a.query_stride +
                                  tile.head * dimensions + dimension);
      const auto query = [&](unsigned index) {
        return limited_query<kFormat>(bits_to_float(four.words[index]));
      };
      words.words[half] = pack_pair<kFormat>(query(0), query(1));
      words.words[half + 2] = pack_pair<kFormat>(query(2), query(3));
    }
    fragments[turn * kWarpThreads] = words;
  }
  return fragments;
}

template <KvFormat kFormat, unsigned kBlocks, typename Page>
GPU_FUNCTION void score_tile(const Page& page, const TilePlace& tile, const Words4* fragments,
                             float (&scores)[kKeyTiles][4]) {
  for (auto& sums : scores) {
    for (float& sum : sums) sum = 0;
  }
  GPU_UNROLL_BY(1) for (unsigned block = 0; block < kBlocks; ++block) {
    const Words4 first = fragments[block * 2 * kWarpThreads];
    const Words4 second = fragments[(block * 2 + 1) * kWarpThreads];
    GPU_UNROLL_BY(8) for (unsigned keys = 0; keys < kKeyTiles; ++keys) {
      const Words4 key = key_words<kFormat>(page, keys * 8 + tile.group,
                                            block * kBlockDimensions + tile.place * 8);
      multiply_pairs<kFormat>(scores[keys], first.words, {key.words[0], key.words[1]});
      multiply_pairs<kFormat>(scores[keys], second.words, {key.words[2], key.words[3]});
    }
  }
}

// Whether every token of the tile sees every key of the page.
template <bool kShaped>
GPU_FUNCTION bool sees_page(const GpuAttention& a, const TilePlace& tile, unsigned page) {
  return (page + 1) * kSlots <= last_key<kShaped>(a, tile.position, tile.length) + 1 &&
         first_key<kShaped>(a, tile.position + kTileRows - 1) <= page * kSlots;
}

// Caps the scaled products, and leaves them without the scale.
GPU_FUNCTION void cap_products(const GpuAttention& a, float (&scores)[kKeyTiles][4]) {
  const float most = a.score_cap / a.scale;
  GPU_UNROLL
  for (auto& sums : scores) {
    GPU_UNROLL
    for (float& sum : sums) {
      sum = multiply(tangent_of(multiply(sum, a.scale) / a.score_cap), most);
    }
  }
}

// Adds the slope of the tile's head to products: what it is of, without the scale.
GPU_FUNCTION void slope_products(const GpuAttention& a, const TilePlace& tile, unsigned page,
                                 float (&scores)[kKeyTiles][4]) {
  const float slope = a.slopes[tile.head] / a.scale;
  const int first = static_cast<int>(page * kSlots + 2 * tile.place) -
                    static_cast<int>(tile.position + tile.group);
  GPU_UNROLL
  for (unsigned keys = 0; keys < kKeyTiles; ++keys) {
    GPU_UNROLL
    for (unsigned index = 0; index < 4; ++index) {
      const int behind =
          first + static_cast<int>(keys * 8 + index % 2) - static_cast<int>(index / 2 * 8);
      scores[keys][index] = multiply_add(slope, slope_distance(behind), scores[keys][index]);
    }
  }
}

// The factors of the two rows' outputs.
struct TileFactors {
  float of_row[2];
};

// Products to weights, and what was before them to the new maximum. `kWhole`: as sees_page().
template <bool kWhole, bool kShaped>
GPU_FUNCTION TileFactors weigh_keys(const GpuAttention& a, const TilePlace& tile, unsigned page,
                                    float (&scores)[kKeyTiles][4], TileRowsState& state) {
  const float exponent = multiply(a.scale, kLogarithmOfE);
  const unsigned origin = page * kSlots + 2 * tile.place;
  unsigned first[2];
  unsigned last[2];
  float maximum[2];
  for (unsigned row = 0; row < 2; ++row) {
    const unsigned position = tile.position + tile.group + row * 8;
    last[row] = last_key<kShaped>(a, position, tile.length);
    first[row] = first_key<kShaped>(a, position);
    maximum[row] = state.maximum[row];
  }
  const auto seen = [&](unsigned keys, unsigned index) {
    const unsigned key = origin + keys * 8 + index % 2;
    return kWhole || (key >= first[index / 2] && key <= last[index / 2]);
  };
  for (unsigned keys = 0; keys < kKeyTiles; ++keys) {
    for (unsigned index = 0; index < 4; ++index) {
      if (!seen(keys, index)) continue;
      maximum[index / 2] = greater(maximum[index / 2], scores[keys][index]);
    }
  }
  TileFactors factors;
  float origins[2];
  for (unsigned row = 0; row < 2; ++row) {
    maximum[row] = greater(maximum[row], from_lane_across(maximum[row], 1));
    maximum[row] = greater(maximum[row], from_lane_across(maximum[row], 2));
    factors.of_row[row] = power_of_2(multiply(state.maximum[row] - maximum[row], exponent));
    origins[row] = multiply(maximum[row], exponent);
    state.maximum[row] = maximum[row];
    state.sum[row] = multiply(state.sum[row], factors.of_row[row]);
  }
  for (unsigned keys = 0; keys < kKeyTiles; ++keys) {
    for (unsigned index = 0; index < 4; ++index) {
      float& score = scores[keys][index];
      const float power = power_of_2(multiply_add(score, exponent, -origins[index / 2]));
      score = seen(keys, index) ? power : 0.0F;
      state.sum[index / 2] = state.sum[index / 2] + score;
    }
  }
  return factors;
}

template <bool kShaped>
GPU_FUNCTION TileFactors weigh_tile(const GpuAttention& a, const TilePlace& tile, unsigned page,
                                    float (&scores)[kKeyTiles][4], TileRowsState& state) {
  if (kShaped && a.score_cap != 0) cap_products(a, scores);
  if (kShaped && a.slopes != nullptr) slope_products(a, tile, page, scores);
  if (sees_page<kShaped>(a, tile, page)) {
    return weigh_keys<true, kShaped>(a, tile, page, scores, state);
  }
  return weigh_keys<false, kShaped>(a, tile, page, scores, state);
}

// A lane loads 4 neighbouring dimensions of two pairs of keys at once: column c of product j of a
// block is dimension 4 * c + j.
template <KvFormat kFormat, unsigned kBlocks, bool kWhole, typename Page>
GPU_FUNCTION void add_some_values(const Page& page, const TilePlace& tile, unsigned end,
                                  const float (&weights)[kKeyTiles][4],
                                  float (&outputs)[kBlocks * 4][4]) {
  GPU_UNROLL_BY(4) for (unsigned step = 0; step < kKeySteps; ++step) {
    const auto& lower = weights[2 * step];
    const auto& upper = weights[2 * step + 1];
    const uint32_t rows[4] = {
        pack_pair<kFormat>(lower[0], lower[1]), pack_pair<kFormat>(lower[2], lower[3]),
        pack_pair<kFormat>(upper[0], upper[1]), pack_pair<kFormat>(upper[2], upper[3])};
    GPU_UNROLL_BY(8) for (unsigned block = 0; block < kBlocks; ++block) {
      const unsigned dimension = block * kBlockDimensions + tile.group * kValuePiece;
      const unsigned pair = step * 8 + tile.place;
      const Words4 first = value_words<kFormat, kWhole>(page, pair, dimension, end);
      const Words4 second = value_words<kFormat, kWhole>(page, pair + 4, dimension, end);
      for (unsigned j = 0; j < 4; ++j) {
        multiply_pairs<kFormat>(outputs[block * 4 + j], rows, {first.words[j], second.words[j]});
      }
    }
  }
}

// Adds the values of the first `end` slots.
template <KvFormat kFormat, unsigned kBlocks, typename Page>
GPU_FUNCTION void add_tile_values(const Page& page, const TilePlace& tile, unsigned end,
                                  const float (&weights)[kKeyTiles][4],
                                  float (&outputs)[kBlocks * 4][4]) {
  if (end >= kSlots) {
    add_some_values<kFormat, kBlocks, true>(page, tile, end, weights, outputs);
  } else {
    add_some_values<kFormat, kBlocks, false>(page, tile, end, weights, outputs);
  }
}

// If no row of the warp has a new maximum, all factors are 1 and nothing changes.
template <unsigned kBlocks>
GPU_FUNCTION void scale_outputs(const TileFactors& factors, float (&outputs)[kBlocks * 4][4]) {
  if (lanes_where(factors.of_row[0] != 1 || factors.of_row[1] != 1) == 0) return;
  for (auto& sums : outputs) {
    for (unsigned index = 0; index < 4; ++index) {
      sums[index] = multiply(sums[index], factors.of_row[index / 2]);
    }
  }
}

GPU_FUNCTION void write_four(const GpuAttention& a, size_t token, unsigned head, unsigned dimension,
                             const Floats4& four) {
  const float(&values)[4] = four.values;
  const unsigned column = head * a.kv.value_dimension + dimension;
  if (a.output.floats != nullptr) {
    write_16(a.output.floats + token * a.output.float_stride + column,
             {{float_to_bits(values[0]), float_to_bits(values[1]), float_to_bits(values[2]),
               float_to_bits(values[3])}});
  }
  if (a.output.bf16 != nullptr) {
    write_8(a.output.bf16 + token * a.output.bf16_stride + column,
            {{bf16_pair(values[0], values[1]), bf16_pair(values[2], values[3])}});
  }
}

// By what a row's outputs are multiplied at the end.
GPU_FUNCTION float row_share(const GpuAttention& a, unsigned head, const TileRowsState& state,
                             unsigned row) {
  if (a.sinks == nullptr) return 1 / state.sum[row];
  const float maximum = multiply(state.maximum[row], a.scale);
  const HeadSums sums = head_sums<true>(a, head, maximum, state.sum[row]);
  return sums.scale / sums.sum;
}

template <unsigned kBlocks, bool kShaped>
GPU_FUNCTION void write_tile(const GpuAttention& a, const TilePlace& tile, TileRowsState& state,
                             const float (&outputs)[kBlocks * 4][4]) {
  for (unsigned row = 0; row < 2; ++row) {
    state.sum[row] = state.sum[row] + from_lane_across(state.sum[row], 1);
    state.sum[row] = state.sum[row] + from_lane_across(state.sum[row], 2);
  }
  GPU_UNROLL
  for (unsigned index = 0; index < 4; ++index) {
    const unsigned row = tile.group + index / 2 * 8;
    const float share =
        kShaped ? row_share(a, tile.head, state, index / 2) : 1 / state.sum[index / 2];
    GPU_UNROLL
    for (unsigned block = 0; block < kBlocks; ++block) {
      const unsigned dimension =
          block * kBlockDimensions + (2 * tile.place + index % 2) * kValuePiece;
      if (row >= tile.count || dimension >= a.kv.value_dimension) continue;
      Floats4 four;
      GPU_UNROLL
      for (unsigned i = 0; i < kValuePiece; ++i) {
        four.values[i] = multiply(outputs[block * kValuePiece + i][index], share);
      }
      write_four(a, tile.token + row, tile.head, dimension, four);
    }
  }
  if (tile.head + 1 != a.head_count) return;
  for (unsigned row = 0; row < tile.count; ++row)
    pad_attention<true>(a, tile.token + row, lane_index());
}

template <KvFormat kFormat, unsigned kBlocks, bool kShaped>
GPU_FUNCTION void attend_tile(const GpuAttention& a, const TilePlace& tile) {
  const Words4* fragments = load_tile_queries<kFormat, kBlocks>(a, tile);
  const uint32_t* table = a.batch.pages + a.batch.page_tables[a.batch.sequences[tile.token]];
  const unsigned kv_head = (tile.head + a.group_offset) / a.group;
  const unsigned keys_end = tile_keys_end<kShaped>(a, tile);
  TileRowsState state;
  float outputs[kBlocks * 4][4] = {};
  for (unsigned page = first_key<kShaped>(a, tile.position) / kSlots; page * kSlots < keys_end;
       ++page) {
    const KvBlocks blocks = kv_blocks<kFormat>(a.kv, kv_head, table[page]);
    float scores[kKeyTiles][4];
    score_tile<kFormat, kBlocks>(blocks, tile, fragments, scores);
    const TileFactors factors = weigh_tile<kShaped>(a, tile, page, scores, state);
    scale_outputs<kBlocks>(factors, outputs);
    add_tile_values<kFormat, kBlocks>(blocks, tile, keys_end - page * kSlots, scores, outputs);
  }
  write_tile<kBlocks, kShaped>(a, tile, state, outputs);
}

template <KvFormat kFormat, unsigned kBlocks, bool kShaped>
GPU_KERNEL_OF(kTileWarps* kWarpThreads)
void attend_tiles(GpuAttention a) {
  follow_launches();
  const unsigned head = block_column() * kTileWarps + warp_index();
  if (head >= a.head_count) return;
  for (unsigned index = block_row(); index < a.batch.counts->prompt_tiles; index += block_rows()) {
    attend_tile<kFormat, kBlocks, kShaped>(a, tile_place<kShaped>(a, index, head));
  }
}

template <KvFormat kFormat, unsigned kBlocks>
void launch_tiles(void* stream, const GpuAttention& a) {
  launch(
      stream,
      {.columns = divide_up(a.head_count, kTileWarps),
       .rows = a.grid_rows,
       .threads = kTileWarps * kWarpThreads,
       .shared_bytes = kTileWarps * kBlocks * 2 * kWarpThreads * sizeof(Words4)},
      is_shaped(a) ? attend_tiles<kFormat, kBlocks, true> : attend_tiles<kFormat, kBlocks, false>,
      a);
}

}  // namespace
}  // namespace lockstep
