// The steps of operations that are no part of another step.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/base/checked_math.h"
#include "engine/kernels/rotary.h"
#include "engine/pass/form_writer.h"
#include "engine/pass/step_rows.h"
#include "engine/runtime/node/steps.h"

namespace lockstep {
namespace {

// Columns that are computed at once, on the stack.
constexpr size_t kColumnsAtOnce = 512;

const float* row_of(const PlainRows& rows, size_t row, const Pass& pass) {
  return pass.at(rows.rows) + row * rows.stride;
}

// The row from a column on; nullptr where the step has no such operand.
const float* operand_of(const PlainRows& rows, size_t row, size_t column, const Pass& pass) {
  return rows.rows ? row_of(rows, row, pass) + column : nullptr;
}

void write_output(const Pass& pass, const float* values, const PlainOutput& output, size_t row,
                  Range columns, bool generated) {
  if (output.rows) {
    std::memcpy(pass.at(output.rows) + row * output.stride + columns.begin, values,
                columns.size() * sizeof(float));
  }
  for (const FormsOutput& forms : output.forms) {
    write_forms(pass, values, forms, row, columns, generated);
  }
}

// Calls compute(row, columns, values) for a worker's share, and writes the values.
template <typename Compute>
void compute_rows(const StepRows& rows, size_t columns, const PlainOutput& output, const Pass& pass,
                  Compute compute) {
  alignas(64) float values[kColumnsAtOnce];
  for_each_stretch(rows.count(), columns, pass, [&](size_t row, Range mine) {
    for (size_t begin = mine.begin; begin < mine.end; begin += kColumnsAtOnce) {
      const Range at_once = {begin, std::min(mine.end, begin + kColumnsAtOnce)};
      compute(row, at_once, values);
      write_output(pass, values, output, row, at_once, rows.is_generated(row));
    }
  });
}

// In f64: the same for a token wherever it is computed.
float factor_at(const Temperature& temperature, size_t position) {
  const size_t periods = (position + temperature.offset) / temperature.tokens;
  return static_cast<float>(1 +
                            double{temperature.scale} * std::log(1 + static_cast<double>(periods)));
}

void scale_row(const float* x, size_t count, float factor, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = factor * x[i];
}

// `position`: of the row's token.
void apply(const ElementwiseStep& step, const float* x, const float* y, size_t position,
           size_t count, const Pass& pass, float* out) {
  switch (step.function) {
    case Elementwise::kZero:
      std::fill_n(out, count, 0.0F);
      return;
    case Elementwise::kCopy:
    case Elementwise::kSelect:
      std::copy_n(x, count, out);
      return;
    case Elementwise::kAdd:
      for (size_t i = 0; i < count; ++i) out[i] = x[i] + y[i];
      return;
    case Elementwise::kActivation:
      return activation_kernel(pass.kernels, step.activation.function)(
          x, count, step.activation.parameters.data(), out);
    case Elementwise::kGate:
      return gate_kernel(pass.kernels, step.activation.function)(
          x, y, count, step.activation.parameters.data(), out);
    case Elementwise::kScale:
      return scale_row(x, count, step.scale, out);
    case Elementwise::kSoftCap:
      return pass.kernels.soft_cap(x, count, step.scale, out);
    case Elementwise::kClamp:
      for (size_t i = 0; i < count; ++i) out[i] = std::clamp(x[i], -step.scale, step.scale);
      return;
    case Elementwise::kScaleRows: {
      float factor;
      activation_kernel(pass.kernels, step.activation.function)(
          y, 1, step.activation.parameters.data(), &factor);
      return scale_row(x, count, factor, out);
    }
    case Elementwise::kTemperature:
      return scale_row(x, count, factor_at(step.temperature, position), out);
  }
}

// The mean of a row and the factor of its distances from it: chunk after chunk, the sums, and then
// the squares of the distances, each chunk's own and those of its mean (Chan, Golub, LeVeque,
// 1979).
struct Moments {
  float mean = 0;
  float factor = 0;
};
Moments moments_of(const float* sums, const float* squares, size_t columns, float epsilon) {
  const size_t chunks = divide_up(columns, kChunkColumns);
  float sum = 0;
  for (size_t chunk = 0; chunk < chunks; ++chunk) sum += sums[chunk];
  const float mean = sum / static_cast<float>(columns);
  float apart = 0;
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    const size_t begin = chunk * kChunkColumns;
    const auto size = static_cast<float>(std::min(columns, begin + kChunkColumns) - begin);
    const float distance = sums[chunk] / size - mean;
    apart += squares[chunk] + size * (distance * distance);
  }
  return {mean, 1.0F / std::sqrt(apart / static_cast<float>(columns) + epsilon)};
}
Moments moments_of(const NormScaleStep& step, size_t row, const Pass& pass) {
  return moments_of(pass.at(step.sums.sums) + row * step.sums.stride,
                    pass.at(step.norm.chunks.sums) + row * step.norm.chunks.stride,
                    step.norm.columns, step.norm.epsilon);
}

// As moments_of(), of one head.
void center_head(const HeadsStep& step, const float* weight, const Pass& pass, float* head) {
  const size_t dimension = step.head_dimension;
  float sums[divide_up(kMaxHeadDimension, kChunkColumns)];
  float squares[divide_up(kMaxHeadDimension, kChunkColumns)];
  pass.kernels.sum_moments(head, dimension, sums, squares);
  const Moments moments = moments_of(sums, squares, dimension, step.epsilon);
  for (size_t i = 0; i < dimension; ++i) {
    const float value = (head[i] - moments.mean) * moments.factor;
    head[i] = weight == nullptr ? value : value * weight[i];
  }
}

// The kernel's norm, as if all weights were 1.
void norm_head(const HeadsStep& step, const Pass& pass, float* head) {
  const size_t dimension = step.head_dimension;
  float sum = 0;
  for (size_t begin = 0; begin < dimension; begin += kChunkColumns) {
    float squares;
    pass.kernels.sum_squares(head + begin, std::min(kChunkColumns, dimension - begin), &squares);
    sum += squares;
  }
  const float mean = sum / static_cast<float>(dimension);
  const float factor = 1.0F / std::sqrt(mean + step.epsilon);
  for (size_t i = 0; i < dimension; ++i) head[i] *= factor;
}

}  // namespace

void run_elementwise(const ElementwiseStep& step, const Pass& pass) {
  const StepRows rows(step.rows, step.routing, pass);
  const bool selects = step.function == Elementwise::kSelect;
  const bool scales_rows = step.function == Elementwise::kScaleRows;
  compute_rows(
      rows, step.columns, step.output, pass, [&](size_t row, Range columns, float* values) {
        const size_t from = selects ? pass.batch.logit_tokens[row] : row;
        const float* const x = operand_of(step.x, from, columns.begin, pass);
        const float* const y = operand_of(step.y, row, scales_rows ? 0 : columns.begin, pass);
        const size_t position = pass.batch.tokens[rows.token(row)].position;
        apply(step, x, y, position, columns.size(), pass, values);
      });
}

void run_heads(const HeadsStep& step, const Pass& pass) {
  const size_t units = pass.batch.tokens.size() * step.head_count;
  const Range mine = share(Range{0, units}, pass.worker, pass.worker_count);
  for (size_t unit = mine.begin; unit < mine.end; ++unit) {
    const size_t token = unit / step.head_count;
    const size_t first = unit % step.head_count * step.head_dimension;
    float* const head = pass.at(step.output) + token * step.output_stride + first;
    std::memcpy(head, row_of(step.input, token, pass) + first, step.head_dimension * sizeof(float));
    const float* const weight =
        step.norm ? pass.at(step.norm) + unit % step.head_count * step.norm_stride : nullptr;
    if (step.subtracts_mean) {
      center_head(step, weight, pass, head);
    } else if (weight != nullptr) {
      pass.kernels.rms_norm(head, weight, step.head_dimension, step.epsilon, head);
    } else if (step.is_normed) {
      norm_head(step, pass, head);
    }
    if (step.rotary.rows) {
      const float* const cosines = pass.at(step.rotary.rows) + token * step.rotary.stride;
      rotate(step.pairs, cosines, cosines + step.rotary.dimensions / 2, step.rotary.dimensions,
             head);
    }
  }
}

void run_copy_heads(const CopyHeadsStep& step, const Pass& pass) {
  const StepRows rows(step.rows, step.routing, pass);
  size_t head_columns = 0;
  for (const HeadColumns& part : step.parts) head_columns += part.columns;
  const auto copy = [&](size_t row, Range columns, float* out) {
    size_t column = columns.begin;
    while (column < columns.end) {
      const size_t head = column / head_columns;
      size_t within = column % head_columns;
      const HeadColumns* part = step.parts.data();
      for (; within >= part->columns; ++part) within -= part->columns;
      const size_t count = std::min(columns.end - column, part->columns - within);
      const size_t from = head * part->head_stride + part->first + within;
      std::copy_n(row_of(part->input, row, pass) + from, count, out + column - columns.begin);
      column += count;
    }
  };
  compute_rows(rows, step.columns, step.output, pass, copy);
}

void run_norm_sums(const NormSumsStep& step, const Pass& pass) {
  const Routing none;
  const StepRows rows(step.rows, none, pass);
  for_each_stretch(rows.count(), step.columns, pass, [&](size_t row, Range columns) {
    const size_t chunk = columns.begin / kChunkColumns;
    const size_t bytes = divide_up(columns.size(), kChunkColumns) * sizeof(float);
    const float* const x = row_of(step.input, row, pass) + columns.begin;
    float* const squares = pass.at(step.chunks.sums) + row * step.chunks.stride + chunk;
    if (!step.sums.sums) {
      pass.kernels.sum_squares(x, columns.size(), squares);
    } else {
      float* const sums = pass.at(step.sums.sums) + row * step.sums.stride + chunk;
      pass.kernels.sum_moments(x, columns.size(), sums, squares);
      if (step.gather) push(pass, sums, bytes);
    }
    if (step.gather) push(pass, squares, bytes);
  });
}

void run_norm_scale(const NormScaleStep& step, const Pass& pass) {
  const Routing none;
  const StepRows rows(step.rows, none, pass);
  const float* const weight = pass.at(step.weight);
  const float* const bias = pass.at(step.bias);
  compute_rows(rows, step.columns, step.output, pass,
               [&](size_t row, Range columns, float* values) {
                 Moments moments;
                 if (step.sums.sums) {
                   moments = moments_of(step, row, pass);
                 } else {
                   norm_factors(pass, step.norm, {row, row + 1}, &moments.factor);
                 }
                 const float* const x = row_of(step.input, row, pass);
                 for (size_t column = columns.begin; column < columns.end; ++column) {
                   float value = (x[column] - moments.mean) * moments.factor;
                   if (weight != nullptr) value *= weight[column];
                   if (bias != nullptr) value += bias[column];
                   values[column - columns.begin] = value;
                 }
               });
}

}  // namespace lockstep
