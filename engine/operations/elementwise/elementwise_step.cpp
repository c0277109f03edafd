#include "engine/operations/elementwise/elementwise_step.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/operations/step_text.h"
#include "engine/pass/pass.h"
#include "engine/pass/plain_rows.h"
#include "engine/pass/step_rows.h"

namespace lockstep {
namespace {

void write_zeros(const ElementwiseStep&, const ElementwiseRow& row, const KernelTable&,
                 float* out) {
  std::fill_n(out, row.count, 0.0F);
}

void copy(const ElementwiseStep&, const ElementwiseRow& row, const KernelTable&, float* out) {
  std::copy_n(row.x, row.count, out);
}

// The row from a column on; nullptr where the step has no such operand.
const float* operand_of(const PlainRows& rows, size_t row, size_t column, const Pass& pass) {
  return rows.rows ? row_of(rows, row, pass) + column : nullptr;
}

std::string text_of(const Temperature& temperature) {
  if (temperature == Temperature()) return "";
  return fmt::format(" temperature {} of {} tokens offset {}", temperature.scale,
                     temperature.tokens, temperature.offset);
}

}  // namespace

const ElementwiseFunction kZeroFunction = {
    .name = "zero", .apply = write_zeros, .gpu_function = GpuFunction::kZero};
const ElementwiseFunction kCopyFunction = {.name = "copy", .apply = copy};

std::string text_of(const ElementwiseStep& step) {
  return fmt::format("{} {}{}{} of {}{} and {} columns {}{}", step.function->name,
                     text_of(step.activation), step.scale, text_of(step.temperature),
                     text_of(step.rows, step.routing), text_of(step.x), text_of(step.y),
                     step.columns, text_of(step.output));
}

void run(const ElementwiseStep& step, const Pass& pass, TaskCounter&) {
  const StepRows rows(step.rows, step.routing, pass);
  const ElementwiseFunction& function = *step.function;
  compute_rows(
      rows, step.columns, step.output, pass, [&](size_t row, Range columns, float* values) {
        const size_t from = function.selects ? pass.batch.logit_tokens[row] : row;
        const size_t column = function.has_factors ? 0 : columns.begin;
        const ElementwiseRow operands = {.x = operand_of(step.x, from, columns.begin, pass),
                                         .y = operand_of(step.y, row, column, pass),
                                         .count = columns.size(),
                                         .position = pass.batch.tokens[rows.token(row)].position};
        function.apply(step, operands, pass.kernels, values);
      });
}

}  // namespace lockstep
