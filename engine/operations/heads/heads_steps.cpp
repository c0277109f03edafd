#include "engine/operations/heads/heads_steps.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "engine/base/checked_math.h"
#include "engine/base/format.h"
#include "engine/base/range.h"
#include "engine/kernels/attention.h"
#include "engine/operations/step_text.h"
#include "engine/pass/form_writer.h"
#include "engine/pass/pass.h"
#include "engine/pass/plain_rows.h"
#include "engine/pass/step_rows.h"

namespace lockstep {
namespace {

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

std::string text_of(const RotaryTableStep& step) {
  return fmt::format("rotary table {} magnitude {}{} frequencies {}",
                     text_of(step.table, step.stride), step.magnitude,
                     step.offset == 0 ? "" : fmt::format(" offset {}", step.offset),
                     fmt::join(step.frequencies, " "));
}

std::string text_of(const HeadsStep& step) {
  return fmt::format(
      "heads {} count {} dimension {}{}{} norm {} epsilon {} rotary {} {} dimensions {} to {}",
      text_of(step.input), step.head_count, step.head_dimension, step.is_normed ? " normed" : "",
      step.subtracts_mean ? " without mean" : "", text_of(step.norm, step.norm_stride),
      step.epsilon, name_in(kPairNames, step.pairs), text_of(step.rotary.rows, step.rotary.stride),
      step.rotary.dimensions, text_of(step.output, step.output_stride));
}

std::string text_of(const CopyHeadsStep& step) {
  std::string all =
      fmt::format("copy of heads of {}{} columns", text_of(step.rows, step.routing), step.columns);
  for (const HeadColumns& part : step.parts) {
    fmt::format_to(std::back_inserter(all), " part ({} by {} columns {} from {})",
                   text_of(part.input), part.head_stride, part.columns, part.first);
  }
  return all + text_of(step.output);
}

void run(const RotaryTableStep& step, const Pass& pass, TaskCounter&) {
  const size_t pairs = step.frequencies.size();
  const Range mine = share(pass.batch.tokens.size(), pass);
  for (size_t token = mine.begin; token < mine.end; ++token) {
    const auto position = static_cast<double>(pass.batch.tokens[token].position + step.offset);
    float* cosines = pass.at(step.table) + token * step.stride;
    for (size_t pair = 0; pair < pairs; ++pair) {
      const double angle = position * step.frequencies[pair];
      cosines[pair] = static_cast<float>(step.magnitude * std::cos(angle));
      cosines[pairs + pair] = static_cast<float>(step.magnitude * std::sin(angle));
    }
  }
}

void run(const HeadsStep& step, const Pass& pass, TaskCounter&) {
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

void run(const CopyHeadsStep& step, const Pass& pass, TaskCounter&) {
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

}  // namespace lockstep
