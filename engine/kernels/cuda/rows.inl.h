// Kernels of gpu_rows.h. Included after gpu_code.h.
#pragma once

#include "engine/base/checked_math.h"
#include "engine/kernels/cuda/kernel_words.inl.h"

namespace lockstep {
namespace {

constexpr unsigned kRowThreads = 128;
constexpr unsigned kRowChunk = 32;  // columns

GPU_FUNCTION unsigned row_count_of(const GpuBatch& batch, GpuRowSet which) {
  return which == GpuRowSet::kTokens ? batch.counts->tokens : batch.counts->logits;
}

// A warp takes a chunk of 32 columns, a lane a column.
GPU_KERNEL_OF(kRowThreads) void norm_rows(GpuNormRows norm) {
  follow_launches();
  const unsigned rows = row_count_of(norm.batch, norm.which);
  const unsigned chunks = static_cast<unsigned>(divide_up<size_t>(norm.columns, kRowChunk));
  const unsigned warps = thread_count() / kWarpThreads;
  const unsigned chunk = block_column() * warps + warp_index();
  if (chunk >= chunks) return;
  const unsigned column = chunk * kRowChunk + lane_index();
  const bool present = column < norm.columns;
  const float weight = present ? norm.weight[column] : 0.0F;
  for (unsigned row = block_row(); row < rows; row += block_rows()) {
    const bool is_own = norm.which == GpuRowSet::kTokens || norm.has_logit_rows;
    const unsigned token = is_own ? row : norm.batch.logit_tokens[row];
    const float x = present ? norm.residual[token * norm.residual_stride + column] : 0.0F;
    if (present) {
      store_row(norm.rows, row, column, multiply(x, weight));
    } else {
      store_padding(norm.rows, row, column);
    }
    const float second = from_lane_across(x, 16);
    const float sum = add_lanes(multiply_add(second, second, x * x), 8);
    if (lane_index() == 0) norm.sums[row * norm.sum_stride + chunk] = sum;
  }
}

GPU_KERNEL_OF(kRowThreads) void rotary_table(GpuRotaryTable rotary) {
  follow_launches();
  const unsigned pair = block_column() * thread_count() + thread_index();
  if (pair >= rotary.pairs) return;
  const double frequency = rotary.frequencies[pair];
  for (unsigned token = block_row(); token < rotary.batch.counts->tokens; token += block_rows()) {
    const double angle = static_cast<double>(rotary.batch.positions[token]) * frequency;
    float* row = rotary.table + token * rotary.stride;
    row[pair] = static_cast<float>(rotary.magnitude * cosine_of(angle));
    row[rotary.pairs + pair] = static_cast<float>(rotary.magnitude * sine_of(angle));
  }
}

unsigned blocks_for(size_t units, unsigned per_block) {
  return static_cast<unsigned>(divide_up<size_t>(units, per_block));
}

}  // namespace

void gpu_norm_rows(void* stream, const GpuNormRows& norm) {
  const unsigned blocks = blocks_for(norm.columns, kRowThreads);
  launch(stream, {.columns = blocks, .rows = norm.grid_rows, .threads = kRowThreads}, norm_rows,
         norm);
}

void gpu_rotary_table(void* stream, const GpuRotaryTable& rotary) {
  const unsigned blocks = blocks_for(rotary.pairs, kRowThreads);
  launch(stream, {.columns = blocks, .rows = rotary.grid_rows, .threads = kRowThreads},
         rotary_table, rotary);
}

}  // namespace lockstep
