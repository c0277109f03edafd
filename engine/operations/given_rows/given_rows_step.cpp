#include "engine/operations/given_rows/given_rows_step.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/range.h"
#include "engine/operations/step_text.h"
#include "engine/pass/pass.h"
#include "engine/pass/plain_rows.h"
#include "engine/pass/step_rows.h"

namespace lockstep {

std::string text_of(const GivenRowsStep& step) {
  return fmt::format("given rows of {} columns{}", step.columns, text_of(step.output));
}

void run(const GivenRowsStep& step, const Pass& pass, TaskCounter&) {
  const Routing none;
  const StepRows rows(Rows::kTokens, none, pass);
  compute_rows(rows, step.columns, step.output, pass,
               [&](size_t row, Range columns, float* values) {
                 const float* const given = pass.batch.given_rows.data() + row * step.columns;
                 std::copy_n(given + columns.begin, columns.size(), values);
               });
}

}  // namespace lockstep
