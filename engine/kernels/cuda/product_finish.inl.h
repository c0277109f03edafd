// Finishes a block's sums: a token's by one warp, a row's by one lane. Included by product.inl.h
// and finish_panel.inl.h.
#pragma once

#include "engine/kernels/cuda/kernel_words.inl.h"
#include "engine/kernels/cuda/product_units.inl.h"
#include "engine/kernels/gpu_product.h"

namespace lockstep {

// The product of more than 8 tokens, which is compiled by itself (many_product.inl.h). `window`: as
// window_of() gives it; of its parts [begin, end), which are of one format, not F32.
void multiply_many_tokens(void* stream, const GpuProduct& window, size_t begin, size_t end);

namespace {

// Every array from the window's first token on.
inline GpuProduct window_of(GpuProduct product) {
  const size_t first = product.token_begin;
  const auto advance = [first](auto*& array, size_t stride) {
    if (array != nullptr) array += first * stride;
  };
  const auto advance_rows = [&advance](GpuRows& rows) {
    advance(rows.bf16, rows.bf16_stride);
    advance(rows.f32, rows.f32_stride);
  };
  advance(product.input, product.input_stride_bytes);
  advance(product.norm.chunk_sums, product.norm.stride);
  for (GpuPart& part : product.parts) advance(part.output, part.output_stride);
  for (GpuNormOutput& norm : product.norms) norm = norm_from(norm, first);
  advance_rows(product.gate);
  return product;
}

// The block's rows: the 32 of part `part` from `row` on, or 16 of each of the first two parts.
struct BlockPlace {
  size_t part;
  size_t row;
  size_t block;  // of the part
};

// `sum`: of all chunks.
GPU_FUNCTION float factor_of_sum(const GpuNormFactor& norm, float sum) {
  return 1 / root(sum / static_cast<float>(norm.columns) + norm.epsilon);
}

// `sum`: of the chunks that the lane takes. Called by all lanes.
GPU_FUNCTION float factor_of_sums(const GpuNormFactor& norm, float sum) {
  return factor_of_sum(norm, add_lanes(sum, kWarpThreads / 2));
}

GPU_FUNCTION float norm_factor(const GpuNormFactor& norm, size_t token) {
  if (norm.chunk_sums == nullptr) return 1;
  const float* chunks = norm.chunk_sums + token * norm.stride;
  const size_t count = divide_up<size_t>(norm.columns, kBlockRows);
  float sum = 0;
  for (size_t chunk = lane_index(); chunk < count; chunk += kWarpThreads) sum += chunks[chunk];
  return factor_of_sums(norm, sum);
}

// A row's result takes these from memory.
struct PartAhead {
  float bias;
  float held;  // what `output` held
};
GPU_FUNCTION PartAhead read_part_ahead(const GpuPart& part, size_t token, size_t row) {
  PartAhead ahead = {};
  if (part.bias != nullptr) ahead.bias = part.bias[row];
  if (part.output != nullptr && part.accumulate) {
    ahead.held = part.output[token * part.output_stride + row];
  }
  return ahead;
}

// The part's result for a row: y of gpu_product.h. `kScaled`: parts may have a scale.
template <bool kScaled = true>
GPU_FUNCTION float finish_part(const GpuProduct& product, const GpuPart& part, float y,
                               float factor, size_t token, size_t row, const PartAhead& ahead) {
  if (product.norm.chunk_sums != nullptr) y = multiply(y, factor);
  if (kScaled && part.scale != 1) y = multiply(y, part.scale);
  if (part.bias != nullptr) y += ahead.bias;
  if (part.output == nullptr) return y;
  if (part.accumulate) y += ahead.held;
  part.output[token * part.output_stride + row] = y;
  return y;
}
GPU_FUNCTION float finish_part(const GpuProduct& product, const GpuPart& part, float y,
                               float factor, size_t token, size_t row) {
  return finish_part(product, part, y, factor, token, row, read_part_ahead(part, token, row));
}

// `y` is 0 where the lane's row is beyond the last. `weight`: the norm's of that row.
GPU_FUNCTION void finish_norm(const GpuNormOutput& norm, const BlockPlace& place, float y,
                              bool is_row, float weight, size_t token) {
  const unsigned lane = lane_index();
  const float across = from_lane_across(y, 16);
  const float first = lane < 16 ? y : across;
  const float second = lane < 16 ? across : y;
  const float squares = add_lanes(multiply_add(second, second, multiply(first, first)), 8);
  const size_t row = norm.row_of_token == nullptr ? token : norm.row_of_token[token];
  if (row == kGpuNoRow) return;
  if (lane == 0) norm.chunk_sums[row * norm.chunk_stride + place.block] = squares;
  if (is_row) {
    store_row(norm.rows, row, place.row + lane, multiply(y, weight));
  } else {
    store_padding(norm.rows, row, place.row + lane);
  }
}

// The lower 16 lanes have the gate's rows, the upper ones those that are gated.
GPU_FUNCTION void finish_gate(const GpuProduct& product, const BlockPlace& place, float y,
                              size_t token) {
  const float gated = from_lane_across(y, 16);
  const size_t row = place.row + lane_index() % kGpuPanelRows;
  const size_t rows = product.parts[0].matrix.rows;
  if (lane_index() < kGpuPanelRows && row < rows) {
    store_row(product.gate, token, row, gated_by_silu(y, gated));
  } else if (row >= rows && lane_index() < kGpuPanelRows) {
    store_padding(product.gate, token, row);
  } else if (place.row % kBlockRows == 0 && place.row + kGpuPanelRows >= rows) {
    // The last panel, with no other beside it.
    store_padding(product.gate, token, row + kGpuPanelRows);
  }
}

// The lane's row of the block's 32, and what finishing it takes from memory: read before the sum is
// ready, it is waited for once.
struct LaneRow {
  size_t part;
  size_t row;
  bool is_row;  // else it is beyond the last
  PartAhead ahead;
  float weights[kGpuProductNorms];
};
GPU_FUNCTION LaneRow read_lane_row(const GpuProduct& product, const BlockPlace& place,
                                   size_t token) {
  const unsigned lane = lane_index();
  const bool gate = product.finish == GpuFinish::kGate;
  LaneRow own = {};
  own.part = gate ? lane / kGpuPanelRows : place.part;
  own.row = place.row + (gate ? lane % kGpuPanelRows : lane);
  const GpuPart& part = product.parts[own.part];
  own.is_row = own.row < part.matrix.rows;
  if (!own.is_row) return own;
  own.ahead = read_part_ahead(part, token, own.row);
  GPU_UNROLL
  for (size_t norm = 0; norm < kGpuProductNorms; ++norm) {
    if (norm < product.norm_count) own.weights[norm] = product.norms[norm].weight[own.row];
  }
  return own;
}

// `sum`: of the lane's row. Called by all lanes of a warp.
template <bool kScaled = true>
GPU_FUNCTION void finish_token(const GpuProduct& product, const BlockPlace& place,
                               const LaneRow& own, float sum, float factor, size_t token) {
  const float y = own.is_row ? finish_part<kScaled>(product, product.parts[own.part], sum, factor,
                                                    token, own.row, own.ahead)
                             : 0.0F;
  if (product.finish == GpuFinish::kGate) finish_gate(product, place, y, token);
  GPU_UNROLL
  for (size_t norm = 0; norm < kGpuProductNorms; ++norm) {
    if (norm >= product.norm_count) return;
    finish_norm(product.norms[norm], place, y, own.is_row, own.weights[norm], token);
  }
}
template <bool kScaled = true>
GPU_FUNCTION void finish_token(const GpuProduct& product, const BlockPlace& place, float sum,
                               float factor, size_t token) {
  finish_token<kScaled>(product, place, read_lane_row(product, place, token), sum, factor, token);
}

// The sum of the lane's row over the warps' `sums`, which are [warp][token][kSumsStride].
template <unsigned kWarps, unsigned kSumsStride>
GPU_FUNCTION float add_warps(const float* sums, unsigned token, unsigned token_capacity) {
  float y = sums[token * kSumsStride + lane_index()];
  for (unsigned warp = 1; warp < kWarps; ++warp) {
    y += sums[(warp * token_capacity + token) * kSumsStride + lane_index()];
  }
  return y;
}

// `sums` is [warp][token][kSumsStride]; the first token's results go to row `first`.
template <unsigned kWarps, unsigned kSumsStride, bool kScaled, unsigned kFactors>
GPU_FUNCTION void finish_tokens(const GpuProduct& product, const BlockPlace& place,
                                const float* sums, unsigned tokens, unsigned token_capacity,
                                const float (&factors)[kFactors], size_t first) {
  GPU_UNROLL
  for (unsigned turn = 0; turn < kFactors; ++turn) {
    const unsigned token = warp_index() + turn * kWarps;
    if (token >= tokens) return;
    const float y = add_warps<kWarps, kSumsStride>(sums, token, token_capacity);
    finish_token<kScaled>(product, place, y, factors[turn], first + token);
  }
}

}  // namespace
}  // namespace lockstep
