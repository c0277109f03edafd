// Kernels of gpu_values.h. Included after gpu_code.h.
#pragma once

#include "engine/base/check.h"
#include "engine/base/checked_math.h"
#include "engine/kernels/cuda/activations.inl.h"
#include "engine/kernels/cuda/kernel_words.inl.h"
#include "engine/kernels/gpu_values.h"

namespace lockstep {
namespace {

constexpr unsigned kValueThreads = 128;
constexpr unsigned kWholeThreads = 256;
constexpr unsigned kWholeWarps = kWholeThreads / kWarpThreads;
constexpr unsigned kHeadRowWarps = 4;

GPU_FUNCTION unsigned rows_of(const GpuWalk& walk) {
  const GpuBatchCounts& counts = *walk.batch.counts;
  if (walk.which == GpuRowSet::kLogits) return counts.logits;
  return walk.rows_each == 0 ? counts.tokens : counts.tokens * walk.rows_each;
}

// The token of the batch that the row is of.
GPU_FUNCTION unsigned token_of(const GpuWalk& walk, unsigned row) {
  if (walk.which == GpuRowSet::kLogits) return walk.batch.logit_tokens[row];
  return walk.rows_each == 0 ? row : walk.row_tokens[row];
}

GPU_FUNCTION void store_value(const GpuValues& output, size_t row, size_t column, float value) {
  if (output.floats != nullptr) output.floats[row * output.stride + column] = value;
  store_row(output.rows, row, column, value);
}

// The last expert whose rows begin at the row or before: those without rows begin where the next
// one does.
GPU_FUNCTION size_t expert_of_row(const uint32_t* row_begin, size_t expert_count, unsigned row) {
  size_t lower = 0;
  for (size_t upper = expert_count; lower + 1 < upper;) {
    const size_t middle = (lower + upper) / 2;
    if (row_begin[middle] <= row) {
      lower = middle;
    } else {
      upper = middle;
    }
  }
  return lower;
}

// The weight of an expert's row: that of the token's choice whose row it is.
GPU_FUNCTION float weight_of_row(const GpuElementwise& step, unsigned row) {
  size_t choice = static_cast<size_t>(step.walk.row_tokens[row]) * step.walk.rows_each;
  while (step.choice_rows[choice] != row) ++choice;
  return step.weights[choice];
}

GPU_FUNCTION float temperature_factor(const GpuElementwise& step, unsigned row) {
  const unsigned position = step.walk.batch.positions[token_of(step.walk, row)];
  const auto periods = static_cast<double>((position + step.offset) / step.period);
  return static_cast<float>(1 + static_cast<double>(step.scale) * logarithm_of(1 + periods));
}

GPU_FUNCTION float element_of(const GpuElementwise& step, unsigned row, float x, float y) {
  switch (step.function) {
    case GpuFunction::kZero:
      return 0;
    case GpuFunction::kMinusZero:
      return -0.0F;
    case GpuFunction::kCopy:
      return x;
    case GpuFunction::kAdd:
      return x + y;
    case GpuFunction::kScale:
      return multiply(step.scale, x);
    case GpuFunction::kSoftCap:
      return multiply(tangent_of(x / step.scale), step.scale);
    case GpuFunction::kClamp:
      return x > step.scale ? step.scale : x < -step.scale ? -step.scale : x;
    case GpuFunction::kTemperature:
      return multiply(temperature_factor(step, row), x);
    case GpuFunction::kActivation:
    case GpuFunction::kGate:
    case GpuFunction::kScaleRows:
      break;
  }
  // The activations stand in the code once.
  const bool is_factors = step.function == GpuFunction::kScaleRows;
  const float activated = activate(step.activation, is_factors ? y : x);
  if (step.function == GpuFunction::kActivation) return activated;
  return multiply(activated, is_factors ? x : gated_by(step.activation, y));
}

GPU_FUNCTION float scaled_and_biased(const GpuRowBiases& own, size_t expert, size_t column,
                                     float x) {
  if (own.scales != nullptr) x = multiply(x, own.scales[expert]);
  if (own.biases != nullptr) x += own.biases[expert * own.stride + column];
  return x;
}

// A thread takes a column.
GPU_KERNEL_OF(kValueThreads) void compute_elements(GpuElementwise step) {
  follow_launches();
  const unsigned rows = rows_of(step.walk);
  const unsigned column = block_column() * thread_count() + thread_index();
  if (column >= round_up<size_t>(step.columns, kWarpThreads)) return;
  for (unsigned row = block_row(); row < rows; row += block_rows()) {
    if (column >= step.columns) {
      store_padding(step.output.rows, row, column);
      continue;
    }
    float x = 0;
    float y = 0;
    if (step.x != nullptr) {
      const unsigned from = step.selects ? token_of(step.walk, row) : row;
      x = step.x[from * step.x_stride + column];
    }
    if (step.y != nullptr) {
      const bool is_factor = step.function == GpuFunction::kScaleRows;
      y = step.y[row * step.y_stride + (is_factor ? 0 : column)];
    }
    if (step.weights != nullptr) {
      const float weight = weight_of_row(step, row);
      x = multiply(x, weight);
      y = multiply(y, weight);
    }
    if (step.is_biased()) {
      const size_t expert = expert_of_row(step.row_begin, step.expert_count, row);
      x = scaled_and_biased(step.x_biases, expert, column, x);
      y = scaled_and_biased(step.y_biases, expert, column, y);
    }
    const float value = element_of(step, row, x, y);
    store_value(step.output, row, column, value);
    for (size_t copy = 0; copy < step.copy_count; ++copy) {
      step.copies[copy][row * step.output.rows.f32_stride + column] = value;
    }
  }
}

// A warp takes a chunk.
GPU_KERNEL_OF(kValueThreads) void sum_chunks(GpuChunkSums step) {
  follow_launches();
  const unsigned rows = rows_of(step.walk);
  const size_t own = divide_up<size_t>(step.columns, kWarpThreads);
  const size_t all = step.all_chunks == 0 ? own : step.all_chunks;
  const unsigned warps = thread_count() / kWarpThreads;
  const size_t chunk = static_cast<size_t>(block_column()) * warps + warp_index();
  if (chunk >= all) return;
  const size_t begin = step.all_chunks == 0 ? 0 : step.first;
  const bool is_own = chunk >= begin && chunk < begin + own;
  const size_t column = (chunk - begin) * kWarpThreads + lane_index();
  for (unsigned row = block_row(); row < rows; row += block_rows()) {
    const float x = is_own && column < step.columns ? step.x[row * step.x_stride + column] : 0.0F;
    const float second = from_lane_across(x, 16);
    const float squares = add_lanes(multiply_add(second, second, multiply(x, x)), 8);
    if (lane_index() != 0) continue;
    const size_t at = row * step.sum_stride + chunk;
    step.sums[at] = is_own ? squares : -0.0F;
    for (size_t copy = 0; copy < step.copy_count; ++copy) step.copies[copy][at] = squares;
  }
}

// As a product's.
GPU_FUNCTION float factor_of(const GpuNormFactor& norm, unsigned row) {
  const float* chunks = norm.chunk_sums + row * norm.stride;
  const size_t count = divide_up<size_t>(norm.columns, kWarpThreads);
  float sum = 0;
  for (size_t chunk = lane_index(); chunk < count; chunk += kWarpThreads) sum += chunks[chunk];
  sum = add_lanes(sum, kWarpThreads / 2);
  return 1.0F / root(sum / static_cast<float>(norm.columns) + norm.epsilon);
}

// The sum over all threads of the block, which all have it; called by all of them.
GPU_FUNCTION float sum_of_block(float own, float* warp_sums) {
  const float sum = add_lanes(own, kWarpThreads / 2);
  meet_block();  // what lay there has been read
  if (lane_index() == 0) warp_sums[warp_index()] = sum;
  meet_block();
  float all = warp_sums[0];
  for (unsigned warp = 1; warp < kWholeWarps; ++warp) all += warp_sums[warp];
  return all;
}

// A block takes a row.
GPU_KERNEL_OF(kWholeThreads) void norm_whole_rows(GpuWholeNorm norm) {
  follow_launches();
  auto* warp_sums = reinterpret_cast<float*>(shared_memory());
  const unsigned rows = rows_of(norm.walk);
  const auto columns = static_cast<unsigned>(norm.columns);
  const auto count = static_cast<float>(columns);
  for (unsigned row = block_row(); row < rows; row += block_rows()) {
    const float* x = norm.x + row * norm.x_stride;
    float mean = 0;
    if (norm.subtracts_mean) {
      float sum = 0;
      for (unsigned i = thread_index(); i < columns; i += kWholeThreads) sum += x[i];
      mean = sum_of_block(sum, warp_sums) / count;
    }
    float factor;
    if (norm.factor.chunk_sums != nullptr) {
      factor = factor_of(norm.factor, row);
    } else {
      float squares = 0;
      for (unsigned i = thread_index(); i < columns; i += kWholeThreads) {
        const float distance = x[i] - mean;
        squares = multiply_add(distance, distance, squares);
      }
      factor = 1.0F / root(sum_of_block(squares, warp_sums) / count + norm.epsilon);
    }
    for (unsigned i = thread_index(); i < round_up(columns, kWarpThreads); i += kWholeThreads) {
      if (i >= columns) {
        store_padding(norm.output.rows, row, i);
        continue;
      }
      float value = multiply(x[i] - mean, factor);
      if (norm.weight != nullptr) value = multiply(value, norm.weight[i]);
      if (norm.bias != nullptr) value += norm.bias[i];
      store_value(norm.output, row, i, value);
    }
  }
}

// Leaves the head, normed or as it is, where it goes.
GPU_FUNCTION void norm_head_row(const GpuHeadRows& heads, unsigned head, const float* from,
                                float* to) {
  const unsigned dimensions = heads.head_dimension;
  const auto count = static_cast<float>(dimensions);
  float mean = 0;
  if (heads.subtracts_mean) {
    float sum = 0;
    for (unsigned i = lane_index(); i < dimensions; i += kWarpThreads) sum += from[i];
    mean = add_lanes(sum, kWarpThreads / 2) / count;
  }
  float squares = 0;
  for (unsigned i = lane_index(); i < dimensions; i += kWarpThreads) {
    const float distance = from[i] - mean;
    squares = multiply_add(distance, distance, squares);
  }
  squares = add_lanes(squares, kWarpThreads / 2);
  const float factor = 1.0F / root(squares / count + heads.epsilon);
  const float* weight = heads.norm == nullptr ? nullptr : heads.norm + head * heads.norm_stride;
  for (unsigned i = lane_index(); i < dimensions; i += kWarpThreads) {
    const float value = multiply(from[i] - mean, factor);
    to[i] = weight == nullptr ? value : multiply(value, weight[i]);
  }
}

GPU_FUNCTION void rotate_row(const GpuHeadRows& heads, unsigned token, float* head) {
  const unsigned half = heads.rotary_dimensions / 2;
  const bool interleaved = heads.pairs == RotaryPairs::kInterleaved;
  const float* cosines = heads.rotary_table + token * heads.rotary_stride;
  for (unsigned i = lane_index(); i < half; i += kWarpThreads) {
    float& first = head[interleaved ? 2 * i : i];
    float& second = head[interleaved ? 2 * i + 1 : half + i];
    const float x = first;
    const float y = second;
    first = multiply_add(x, cosines[i], -multiply(y, cosines[half + i]));
    second = multiply_add(x, cosines[half + i], multiply(y, cosines[i]));
  }
}

// A warp takes a head of a token.
GPU_KERNEL_OF(kHeadRowWarps* kWarpThreads) void treat_head_rows(GpuHeadRows heads) {
  follow_launches();
  const unsigned head = block_column() * kHeadRowWarps + warp_index();
  if (head >= heads.head_count) return;
  const unsigned tokens = rows_of(heads.walk);
  const size_t first = static_cast<size_t>(head) * heads.head_dimension;
  for (unsigned token = block_row(); token < tokens; token += block_rows()) {
    const float* from = heads.input + token * heads.input_stride + first;
    float* to = heads.output + token * heads.output_stride + first;
    if (heads.is_normed) {
      norm_head_row(heads, head, from, to);
    } else {
      for (unsigned i = lane_index(); i < heads.head_dimension; i += kWarpThreads) to[i] = from[i];
    }
    if (heads.rotary_table == nullptr) continue;
    meet_warp();
    rotate_row(heads, token, to);
  }
}

// A thread takes a column of the result.
GPU_KERNEL_OF(kValueThreads) void copy_heads(GpuHeadCopy copy) {
  follow_launches();
  const unsigned rows = rows_of(copy.walk);
  const unsigned column = block_column() * thread_count() + thread_index();
  if (column >= round_up<size_t>(copy.columns, kWarpThreads)) return;
  const size_t first_columns = copy.parts[0].columns;
  const size_t head_columns = first_columns + (copy.part_count > 1 ? copy.parts[1].columns : 0);
  const size_t head = column / head_columns;
  size_t within = column % head_columns;
  const bool is_first = within < first_columns;
  if (!is_first) within -= first_columns;
  const GpuHeadColumns& part = copy.parts[is_first ? 0 : 1];
  for (unsigned row = block_row(); row < rows; row += block_rows()) {
    if (column >= copy.columns) {
      store_padding(copy.output.rows, row, column);
      continue;
    }
    const size_t from = head * part.head_stride + part.first + within;
    store_value(copy.output, row, column, part.input[row * part.stride + from]);
  }
}

// A thread takes a column.
GPU_KERNEL_OF(kValueThreads) void mean_rows(GpuRowMeans means) {
  follow_launches();
  const GpuBatch& batch = means.walk.batch;
  const unsigned rows = rows_of(means.walk);
  const unsigned column = block_column() * thread_count() + thread_index();
  if (column >= round_up<size_t>(means.columns, kWarpThreads)) return;
  for (unsigned row = block_row(); row < rows; row += block_rows()) {
    if (column >= means.columns) {
      store_padding(means.output.rows, row, column);
      continue;
    }
    const unsigned token = token_of(means.walk, row);
    const unsigned begin = token - batch.positions[token];
    const unsigned count = batch.lengths[batch.sequences[token]];
    double sum = 0;
    for (unsigned i = 0; i < count; ++i) {
      sum += static_cast<double>(means.x[(begin + i) * means.x_stride + column]);
    }
    const double mean = sum / static_cast<double>(count);
    store_value(means.output, row, column, static_cast<float>(mean));
  }
}

// A block for so many columns of each of the rows that it shares with others.
Grid value_grid(const GpuWalk& walk, size_t columns) {
  const size_t padded = round_up<size_t>(columns, kWarpThreads);
  return {.columns = static_cast<unsigned>(divide_up<size_t>(padded, kValueThreads)),
          .rows = walk.grid_rows,
          .threads = kValueThreads};
}

}  // namespace

void gpu_compute_elements(void* stream, const GpuElementwise& step) {
  CHECK(!step.is_biased() || step.row_begin != nullptr, "experts' biases without their rows");
  launch(stream, value_grid(step.walk, step.columns), compute_elements, step);
}

void gpu_sum_chunks(void* stream, const GpuChunkSums& sums) {
  const size_t own = divide_up<size_t>(sums.columns, kWarpThreads);
  const size_t chunks = sums.all_chunks == 0 ? own : sums.all_chunks;
  const Grid grid = {
      .columns = static_cast<unsigned>(divide_up<size_t>(chunks, kValueThreads / kWarpThreads)),
      .rows = sums.walk.grid_rows,
      .threads = kValueThreads};
  launch(stream, grid, sum_chunks, sums);
}

void gpu_norm_whole_rows(void* stream, const GpuWholeNorm& norm) {
  CHECK(norm.factor.chunk_sums == nullptr || !norm.subtracts_mean,
        "a mean of columns that other ranks have");
  launch(stream,
         {.rows = norm.walk.grid_rows,
          .threads = kWholeThreads,
          .shared_bytes = kWholeWarps * sizeof(float)},
         norm_whole_rows, norm);
}

void gpu_treat_head_rows(void* stream, const GpuHeadRows& heads) {
  launch(stream,
         {.columns = divide_up(heads.head_count, kHeadRowWarps),
          .rows = heads.walk.grid_rows,
          .threads = kHeadRowWarps * kWarpThreads},
         treat_head_rows, heads);
}

void gpu_copy_heads(void* stream, const GpuHeadCopy& copy) {
  CHECK(copy.part_count >= 1 && copy.part_count <= kGpuHeadParts, "{} parts of heads",
        copy.part_count);
  launch(stream, value_grid(copy.walk, copy.columns), copy_heads, copy);
}

void gpu_mean_rows(void* stream, const GpuRowMeans& means) {
  launch(stream, value_grid(means.walk, means.columns), mean_rows, means);
}

}  // namespace lockstep
