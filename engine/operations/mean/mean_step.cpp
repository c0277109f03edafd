#include "engine/operations/mean/mean_step.h"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "engine/base/range.h"
#include "engine/operations/step_text.h"
#include "engine/pass/pass.h"
#include "engine/pass/plain_rows.h"
#include "engine/pass/step_rows.h"

namespace lockstep {
namespace {

// The tokens of the batch that are of the same sequence as this one.
Range sequence_of(size_t token, const std::vector<BatchToken>& tokens) {
  const uint32_t sequence = tokens[token].sequence;
  Range all = {token, token + 1};
  while (all.begin > 0 && tokens[all.begin - 1].sequence == sequence) --all.begin;
  while (all.end < tokens.size() && tokens[all.end].sequence == sequence) ++all.end;
  return all;
}

}  // namespace

std::string text_of(const MeanStep& step) {
  return fmt::format("mean of sequences {} columns {}{}", text_of(step.x), step.columns,
                     text_of(step.output));
}

void run(const MeanStep& step, const Pass& pass, TaskCounter&) {
  const Routing none;
  const StepRows rows(Rows::kLogits, none, pass);
  compute_rows(rows, step.columns, step.output, pass,
               [&](size_t row, Range columns, float* values) {
                 const Range tokens = sequence_of(rows.token(row), pass.batch.tokens);
                 std::array<double, kColumnsAtOnce> sums = {};
                 for (size_t token = tokens.begin; token < tokens.end; ++token) {
                   const float* const x = row_of(step.x, token, pass) + columns.begin;
                   for (size_t column = 0; column < columns.size(); ++column) {
                     sums[column] += static_cast<double>(x[column]);
                   }
                 }
                 const auto count = static_cast<double>(tokens.size());
                 for (size_t column = 0; column < columns.size(); ++column) {
                   values[column] = static_cast<float>(sums[column] / count);
                 }
               });
}

}  // namespace lockstep
