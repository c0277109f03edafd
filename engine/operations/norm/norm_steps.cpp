#include "engine/operations/norm/norm_steps.h"

#include <fmt/format.h>

#include "engine/base/checked_math.h"
#include "engine/operations/step_text.h"
#include "engine/pass/form_writer.h"
#include "engine/pass/plain_rows.h"

namespace lockstep {
namespace {

Moments row_moments(const NormScaleStep& step, size_t row, const Pass& pass) {
  return moments_of(pass.at(step.sums.sums) + row * step.sums.stride,
                    pass.at(step.norm.chunks.sums) + row * step.norm.chunks.stride,
                    step.norm.columns, step.norm.epsilon);
}

}  // namespace

std::string text_of(const NormStep& step) {
  return fmt::format("norm step {}{} columns {}{}", text_of(step.residual, step.residual_stride),
                     step.residual_rows == Rows::kTokens ? "" : " of logits", step.columns,
                     text_of(step.norm));
}

std::string text_of(const NormSumsStep& step) {
  return fmt::format("norm sums of {} {} columns {} squares {} sums {}{}",
                     name_in(kRowNames, step.rows), text_of(step.input), step.columns,
                     text_of(step.chunks), text_of(step.sums), step.gather ? " gather" : "");
}

std::string text_of(const NormScaleStep& step) {
  return fmt::format("norm scale of {} {} columns {} weight {} bias {}{} sums {}{}",
                     name_in(kRowNames, step.rows), text_of(step.input), step.columns,
                     text_of(step.weight), text_of(step.bias), text_of(step.norm),
                     text_of(step.sums), text_of(step.output));
}

void run(const NormStep& step, const Pass& pass, TaskCounter&) {
  if (step.residual_rows == Rows::kLogits) {
    return for_each_stretch(
        pass.batch.logit_tokens.size(), step.columns, pass, [&](size_t row, Range columns) {
          const float* const residual = pass.at(step.residual) + row * step.residual_stride;
          write_logit_norm(pass, residual, step.norm, row, columns);
        });
  }
  const size_t tokens = pass.batch.tokens.size();
  for_each_stretch(tokens, step.columns, pass, [&](size_t token, Range columns) {
    write_norm(pass, pass.at(step.residual), step.residual_stride, step.norm, {token, token + 1},
               columns);
  });
}

void run(const NormSumsStep& step, const Pass& pass, TaskCounter&) {
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

void push_norm_sums(const NormSumsStep& step, const Pass& pass) {
  if (!step.gather || step.columns == 0) return;
  const Routing none;
  const StepRows rows(step.rows, none, pass);
  const size_t bytes = divide_up(step.columns, kChunkColumns) * sizeof(float);
  for (size_t row = 0; row < rows.count(); ++row) {
    push(pass, pass.at(step.chunks.sums) + row * step.chunks.stride, bytes);
  }
}

void run(const NormScaleStep& step, const Pass& pass, TaskCounter&) {
  const Routing none;
  const StepRows rows(step.rows, none, pass);
  const float* const weight = pass.at(step.weight);
  const float* const bias = pass.at(step.bias);
  compute_rows(rows, step.columns, step.output, pass,
               [&](size_t row, Range columns, float* values) {
                 Moments moments;
                 if (step.sums.sums) {
                   moments = row_moments(step, row, pass);
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
