// The steps after a product that a library has computed (gpu_panel.h). Included after gpu_code.h.
//
// A lane has four neighbouring rows of a panel, of some tokens one after the other: it reads and
// writes 16 bytes at a time, and what depends on the row alone it reads once.
#pragma once

#include "engine/base/check.h"
#include "engine/kernels/cuda/product_finish.inl.h"
#include "engine/kernels/gpu_panel.h"

namespace lockstep {
namespace {

constexpr unsigned kFinishThreads = 256;
constexpr unsigned kFinishRows = 4;  // of a lane
constexpr unsigned kFinishBlockRows = kFinishThreads * kFinishRows;
constexpr unsigned kFinishChunkLanes = kBlockRows / kFinishRows;
// Tokens whose sums a lane has asked for before it uses the first.
constexpr unsigned kFinishAtOnce = 4;
static_assert(kGpuFinishTokens % kFinishAtOnce == 0);
// Each warp forms the norm's factor of one token.
static_assert(kGpuFinishTokens == kFinishThreads / kWarpThreads);

GPU_FUNCTION Floats4 load_floats(const float* from) {
  const Words4 words = load_16(from);
  return {{bits_to_float(words.words[0]), bits_to_float(words.words[1]),
           bits_to_float(words.words[2]), bits_to_float(words.words[3])}};
}

// The first `count`; zeros follow.
GPU_FUNCTION Floats4 load_some(const float* from, unsigned count) {
  if (count == kFinishRows) return load_floats(from);
  Floats4 some = {};
  for (unsigned i = 0; i < kFinishRows; ++i) {
    if (i < count) some.values[i] = from[i];
  }
  return some;
}

GPU_FUNCTION void store_some(float* to, const Floats4& some, unsigned count) {
  const float(&values)[4] = some.values;
  if (count == kFinishRows) {
    write_16(to, {{float_to_bits(values[0]), float_to_bits(values[1]), float_to_bits(values[2]),
                   float_to_bits(values[3])}});
    return;
  }
  for (unsigned i = 0; i < kFinishRows; ++i) {
    if (i < count) to[i] = values[i];
  }
}

// Rows from `row` on, of which the matrix has `count`; the others are padding.
GPU_FUNCTION void store_rows(const GpuRows& rows, size_t token, size_t row, const Floats4& some,
                             unsigned count) {
  const float(&values)[4] = some.values;
  if (rows.bf16 != nullptr) {
    write_8(rows.bf16 + token * rows.bf16_stride + row,
            {{bf16_pair(values[0], values[1]), bf16_pair(values[2], values[3])}});
  }
  if (rows.f32 != nullptr) store_some(rows.f32 + token * rows.f32_stride + row, some, count);
}

// The rows that a lane has, of one part or of both of a gate, and what it reads of them for all
// tokens.
struct LaneRows {
  bool present = false;
  size_t index = 0;  // of the first among the panel's rows
  size_t row = 0;    // of the part
  unsigned count = 0;
  bool has_bias = false;
  bool has_up_bias = false;
  Floats4 bias = {};
  Floats4 up_bias = {};
  float scale = 1;
  float up_scale = 1;
  float* output = nullptr;
  size_t output_stride = 0;
  bool accumulate = false;
  Floats4 weights[kGpuProductNorms] = {};
};

template <bool kGate>
GPU_FUNCTION LaneRows lane_rows(const GpuPanelSums& sums, size_t index) {
  constexpr unsigned kParts = kGate ? 1 : kGpuProductParts;
  LaneRows rows;
  rows.index = index;
  size_t begin = 0;
  GPU_UNROLL
  for (unsigned number = 0; number < kParts; ++number) {
    const GpuPart& part = sums.product.parts[number];
    const size_t end = begin + sums.panel.row_count[number];
    if (index >= begin && index < end) {
      rows.present = true;
      rows.row = sums.panel.row_begin[number] + index - begin;
      const size_t left = rows.row < part.matrix.rows ? part.matrix.rows - rows.row : 0;
      rows.count = left < kFinishRows ? static_cast<unsigned>(left) : kFinishRows;
      rows.scale = part.scale;
      rows.has_bias = part.bias != nullptr;
      if (rows.has_bias) rows.bias = load_some(part.bias + rows.row, rows.count);
      rows.output = part.output;
      rows.output_stride = part.output_stride;
      rows.accumulate = part.accumulate;
    }
    begin = end;
  }
  if (kGate) {
    const GpuPart& up = sums.product.parts[1];
    rows.up_scale = up.scale;
    rows.has_up_bias = rows.present && up.bias != nullptr;
    if (rows.has_up_bias) rows.up_bias = load_some(up.bias + rows.row, rows.count);
  }
  if constexpr (!kGate) {
    GPU_UNROLL
    for (unsigned norm = 0; norm < kGpuProductNorms; ++norm) {
      if (norm >= sums.product.norm_count || !rows.present) continue;
      rows.weights[norm] = load_some(sums.product.norms[norm].weight + rows.row, rows.count);
    }
  }
  return rows;
}

// The sum of the squares of a chunk, whose rows eight neighbouring lanes have: as gpu_norm_rows()
// forms it. Called by all lanes.
GPU_FUNCTION float chunk_squares(const Floats4& y) {
  float squares[kFinishRows];
  for (unsigned i = 0; i < kFinishRows; ++i) {
    const float across = from_lane_across(y.values[i], 4);
    const bool lower = lane_index() % kFinishChunkLanes < 4;
    const float first = lower ? y.values[i] : across;
    const float second = lower ? across : y.values[i];
    squares[i] = multiply_add(second, second, multiply(first, first));
  }
  for (float& square : squares) square = add_lanes(square, 2);
  return (squares[0] + squares[2]) + (squares[1] + squares[3]);
}

GPU_FUNCTION void finish_norm_rows(const GpuNormOutput& norm, const LaneRows& rows,
                                   const Floats4& weights, const Floats4& y, float squares,
                                   size_t token) {
  const size_t row = norm.row_of_token == nullptr ? token : norm.row_of_token[token];
  if (row == kGpuNoRow || !rows.present) return;
  if (lane_index() % kFinishChunkLanes == 0) {
    norm.chunk_sums[row * norm.chunk_stride + rows.row / kBlockRows] = squares;
  }
  Floats4 weighed;
  for (unsigned i = 0; i < kFinishRows; ++i) {
    weighed.values[i] = multiply(y.values[i], weights.values[i]);
  }
  store_rows(norm.rows, row, rows.row, weighed, rows.count);
}

// y of gpu_product.h but for the residual.
GPU_FUNCTION float scaled_sum(const GpuProduct& product, float y, float factor, float scale,
                              bool has_bias, float bias) {
  if (product.norm.chunk_sums != nullptr) y = multiply(y, factor);
  if (scale != 1) y = multiply(y, scale);
  return has_bias ? y + bias : y;
}

// A token's sums on their way to a lane, and what its output held or the gated part's.
struct LaneSums {
  Floats4 sums;
  Floats4 beside;
};

template <bool kGate>
GPU_FUNCTION LaneSums load_sums(const GpuPanelSums& sums, const LaneRows& rows, size_t token) {
  LaneSums loaded = {};
  if (!rows.present) return loaded;
  const float* own = sums.sums + token * sums.panel.rows() + rows.index;
  if constexpr (kGate) {
    loaded.sums = load_floats(own);
    loaded.beside = load_floats(own + sums.panel.row_count[0]);
  } else {
    const float* held = rows.output + token * rows.output_stride + rows.row;
    if (sums.sums == nullptr) {
      loaded.sums = load_some(held, rows.count);
    } else {
      loaded.sums = load_floats(own);
      if (rows.accumulate) loaded.beside = load_some(held, rows.count);
    }
  }
  return loaded;
}

GPU_FUNCTION void finish_gate_rows(const GpuProduct& product, const LaneRows& rows,
                                   const LaneSums& loaded, float factor, size_t token) {
  Floats4 gated = {};
  for (unsigned i = 0; i < kFinishRows; ++i) {
    if (i >= rows.count) continue;
    const float y = scaled_sum(product, loaded.sums.values[i], factor, rows.scale, rows.has_bias,
                               rows.bias.values[i]);
    const float up = scaled_sum(product, loaded.beside.values[i], factor, rows.up_scale,
                                rows.has_up_bias, rows.up_bias.values[i]);
    gated.values[i] = gated_by_silu(y, up);
  }
  if (rows.present) store_rows(product.gate, token, rows.row, gated, rows.count);
}

// Called by all lanes of a warp.
GPU_FUNCTION void finish_plain_rows(const GpuPanelSums& sums, const LaneRows& rows,
                                    const LaneSums& loaded, float factor, size_t token) {
  const GpuProduct& product = sums.product;
  Floats4 y = loaded.sums;
  if (sums.sums != nullptr) {
    for (unsigned i = 0; i < kFinishRows; ++i) {
      y.values[i] =
          scaled_sum(product, y.values[i], factor, rows.scale, rows.has_bias, rows.bias.values[i]);
      if (rows.accumulate) y.values[i] += loaded.beside.values[i];
      if (i >= rows.count) y.values[i] = 0;
    }
    if (rows.output != nullptr) {
      store_some(rows.output + token * rows.output_stride + rows.row, y, rows.count);
    }
  }
  if (product.norm_count == 0) return;
  const float squares = chunk_squares(y);
  GPU_UNROLL
  for (unsigned norm = 0; norm < kGpuProductNorms; ++norm) {
    if (norm >= product.norm_count) continue;
    finish_norm_rows(product.norms[norm], rows, rows.weights[norm], y, squares, token);
  }
}

// Three blocks of a multiprocessor: with two, too few loads would be under way.
template <bool kGate>
GPU_KERNEL_AT_ONCE(kFinishThreads, 3)
void finish_panel(GpuPanelSums sums) {
  follow_launches();
  const GpuProduct& product = sums.product;
  const size_t token_count = *product.token_count;
  if (token_count <= product.token_begin) return;
  const size_t left = token_count - product.token_begin;
  const size_t tokens = left < product.token_limit ? left : product.token_limit;
  auto* const factors = reinterpret_cast<float*>(shared_memory());
  const LaneRows rows = lane_rows<kGate>(
      sums, static_cast<size_t>(block_column()) * kFinishBlockRows + thread_index() * kFinishRows);
  const size_t stride = static_cast<size_t>(block_rows()) * kGpuFinishTokens;
  for (size_t first = block_row() * kGpuFinishTokens; first < tokens; first += stride) {
    if (product.norm.chunk_sums != nullptr) {
      meet_block();  // the last tokens' have been read
      if (const size_t token = first + warp_index(); token < tokens) {
        const float factor = norm_factor(product.norm, token);
        if (lane_index() == 0) factors[warp_index()] = factor;
      }
      meet_block();
    }
    GPU_KEEP_LOOP
    for (unsigned begin = 0; begin < kGpuFinishTokens; begin += kFinishAtOnce) {
      LaneSums loaded[kFinishAtOnce] = {};
      GPU_UNROLL
      for (unsigned turn = 0; turn < kFinishAtOnce; ++turn) {
        const size_t token = first + begin + turn;
        if (token < tokens) loaded[turn] = load_sums<kGate>(sums, rows, token);
      }
      GPU_UNROLL
      for (unsigned turn = 0; turn < kFinishAtOnce; ++turn) {
        const size_t token = first + begin + turn;
        if (token >= tokens) break;
        const float factor = product.norm.chunk_sums == nullptr ? 1 : factors[begin + turn];
        if constexpr (kGate) {
          finish_gate_rows(product, rows, loaded[turn], factor, token);
        } else {
          finish_plain_rows(sums, rows, loaded[turn], factor, token);
        }
      }
    }
  }
}

// True if what lanes read and write at once is aligned.
inline bool is_aligned_for_lanes(const GpuPanelSums& sums) {
  const auto is_aligned = [](const auto* array, size_t stride) {
    const size_t bytes = kFinishRows * sizeof(*array);
    return reinterpret_cast<uintptr_t>(array) % bytes == 0 && stride % kFinishRows == 0;
  };
  const GpuProduct& product = sums.product;
  bool aligned = is_aligned(sums.sums, 0);
  for (const GpuPart& part : product.parts) {
    aligned = aligned && is_aligned(part.output, part.output_stride) && is_aligned(part.bias, 0);
  }
  const auto are_aligned = [&](const GpuRows& rows) {
    return is_aligned(rows.bf16, rows.bf16_stride) && is_aligned(rows.f32, rows.f32_stride);
  };
  for (const GpuNormOutput& norm : product.norms) {
    aligned = aligned && is_aligned(norm.weight, 0) && are_aligned(norm.rows);
  }
  return aligned && are_aligned(product.gate);
}

}  // namespace

void gpu_finish_panel(void* stream, const GpuPanelSums& sums) {
  CHECK(is_aligned_for_lanes(sums), "rows of a panel do not lie as they are read");
  GpuPanelSums window = sums;
  window.product = window_of(sums.product);
  const bool gate = sums.product.finish == GpuFinish::kGate;
  const size_t rows = gate ? sums.panel.row_count[0] : sums.panel.rows();
  const Grid grid = {.columns = static_cast<unsigned>(divide_up<size_t>(rows, kFinishBlockRows)),
                     .rows = sums.grid_rows,
                     .threads = kFinishThreads,
                     .shared_bytes = kGpuFinishTokens * sizeof(float)};
  launch(stream, grid, gate ? finish_panel<true> : finish_panel<false>, window);
}

}  // namespace lockstep
