#include "engine/operations/embed/embed_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "engine/base/range.h"
#include "engine/operations/step_text.h"
#include "engine/pass/form_writer.h"
#include "engine/pass/pass.h"
#include "engine/pass/plain_rows.h"
#include "engine/pass/step_rows.h"

namespace lockstep {
namespace {

constexpr std::string_view kIndexNames[] = {"", " positions", " segments"};

size_t row_of(const EmbedStep& step, const BatchToken& token) {
  switch (step.index) {
    case EmbedIndex::kPosition:
      return token.position;
    case EmbedIndex::kSegment:
      return token.segment;
    case EmbedIndex::kToken:
      break;
  }
  return static_cast<size_t>(token.token);
}

}  // namespace

bool holds_row(const EmbedStep& step, const BatchToken& token) {
  const size_t row = row_of(step, token);
  return row >= step.row_begin && row < step.row_begin + step.table.rows;
}

std::string text_of(const EmbedStep& step) {
  return fmt::format("embed{} {} from row {} to {}{}", name_in(kIndexNames, step.index),
                     text_of(step.table), step.row_begin, text_of(step.output, step.output_stride),
                     step.gather ? " gather" : "");
}

void run(const EmbedStep& step, const Pass& pass, TaskCounter&) {
  const Range mine = share(pass.batch.tokens.size(), pass);
  for (size_t token = mine.begin; token < mine.end; ++token) {
    if (!holds_row(step, pass.batch.tokens[token])) continue;
    const size_t row = row_of(step, pass.batch.tokens[token]);
    float* output = pass.at(step.output) + token * step.output_stride;
    unpack_row(pass.matrix_at(step.table), row - step.row_begin, output);
    if (step.gather) push(pass, output, step.table.columns * sizeof(float));
  }
}

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

void push_embedded_rows(const EmbedStep& step, const Pass& pass) {
  if (!step.gather) return;
  for (size_t token = 0; token < pass.batch.tokens.size(); ++token) {
    if (!holds_row(step, pass.batch.tokens[token])) continue;
    push(pass, pass.at(step.output) + token * step.output_stride,
         step.table.columns * sizeof(float));
  }
}

}  // namespace lockstep
