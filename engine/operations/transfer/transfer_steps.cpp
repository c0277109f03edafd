#include "engine/operations/transfer/transfer_steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "engine/base/checked_math.h"
#include "engine/base/range.h"
#include "engine/collectives/shared_memory.h"
#include "engine/operations/step_text.h"
#include "engine/pass/form_writer.h"
#include "engine/pass/pass.h"
#include "engine/pass/step_rows.h"

namespace lockstep {
namespace {

constexpr size_t kLineFloats = kLineBytes / sizeof(float);

}  // namespace

std::string text_of(const ClearPagesStep&) {
  return "clear pages";
}

std::string text_of(const CopyStatesStep& step) {
  std::string text = "copy states";
  for (const CopyStatesStep::Part& part : step.parts) {
    text += ' ' + text_of(part.slots, part.slot_floats);
  }
  return text;
}

std::string text_of(const FormStep& step) {
  return fmt::format("form {}{} columns {} {}",
                     step.rows == Rows::kTokens ? "" : text_of(step.rows, step.routing),
                     text_of(step.input, step.input_stride), step.columns, text_of(step.output));
}

std::string text_of(const AllReduceStep& step) {
  return fmt::format(
      "reduce {} columns {} of ranks {} from {} to {} bf16 {} {}", name_in(kRowNames, step.rows),
      step.columns, fmt::join(step.contributors, ","), text_of(step.partial, step.partial_stride),
      text_of(step.output, step.output_stride), text_of(step.bf16_partial), text_of(step.bf16_sum));
}

std::string text_of(const HandOverStep& step) {
  return fmt::format("hand over columns {} of rank {} to rank {} from {} to {}", step.columns,
                     step.giver, step.taker, text_of(step.input, step.input_stride),
                     text_of(step.output, step.output_stride));
}

void run(const ClearPagesStep&, const Pass& pass, TaskCounter&) {
  const KvLayout& kv = pass.kv;
  if (kv.part_bytes == 0) return;  // a rank without heads of keys has no pages
  const std::vector<uint32_t>& cleared = pass.batch.cleared_pages;
  const Range mine = share(kv.part_count * cleared.size(), pass);
  for (size_t unit = mine.begin; unit < mine.end; ++unit) {
    std::byte* const pages = pass.at(kv.part(unit / cleared.size()));
    std::memset(pages + cleared[unit % cleared.size()] * kv.part_bytes, 0, kv.part_bytes);
  }
}

// A slot that a copy has written may be read by a later one: what a worker reads of it, it has
// written itself.
void run(const CopyStatesStep& step, const Pass& pass, TaskCounter&) {
  if (pass.batch.state_copies.empty()) return;
  for (const CopyStatesStep::Part& part : step.parts) {
    const Range lines = share(divide_up(part.slot_floats, kLineFloats), pass);
    const size_t begin = lines.begin * kLineFloats;
    const size_t end = std::min(part.slot_floats, lines.end * kLineFloats);
    if (begin >= end) continue;
    float* const slots = pass.at(part.slots) + begin;
    for (const Batch::StateCopy& copy : pass.batch.state_copies) {
      std::memcpy(slots + copy.to * part.slot_floats, slots + copy.from * part.slot_floats,
                  (end - begin) * sizeof(float));
    }
  }
}

void run(const FormStep& step, const Pass& pass, TaskCounter&) {
  const StepRows rows(step.rows, step.routing, pass);
  for_each_stretch(rows.count(), step.columns, pass, [&](size_t row, Range columns) {
    write_forms(pass, pass.at(step.input) + row * step.input_stride + columns.begin, step.output,
                row, columns, rows.is_generated(row));
  });
}

void push_formed_rows(const FormStep& step, const Pass& pass) {
  if (!step.output.gather || step.columns == 0) return;
  const FormBuffer& form = step.output.forms[ActivationForm::kF32];
  const StepRows rows(step.rows, step.routing, pass);
  const std::byte* own = pass.at(form.rows) + step.output.first_column * sizeof(float);
  for (size_t row = 0; row < rows.count(); ++row) {
    push(pass, own + row * form.stride_bytes, step.columns * sizeof(float));
  }
}

void run(const AllReduceStep& step, const Pass& pass, TaskCounter&) {
  const size_t rows = row_count(step.rows, pass).all;
  if (rows == 0) return;
  const ExchangeTime time(pass);
  pass.counters.exchange_bytes.add(all_reduce({.partial = pass.at(step.partial),
                                               .partial_stride = step.partial_stride,
                                               .output = pass.at(step.output),
                                               .output_stride = step.output_stride,
                                               .row_count = rows,
                                               .column_count = step.columns,
                                               .contributors = step.contributors,
                                               .bf16_partial = pass.at(step.bf16_partial),
                                               .bf16_sum = pass.at(step.bf16_sum)},
                                              pass.peers, pass.barrier, pass.worker,
                                              pass.worker_count));
}

void run(const HandOverStep& step, const Pass& pass, TaskCounter&) {
  if (!step.input) return;
  const ExchangeTime time(pass);
  const Range mine = share(pass.batch.tokens.size(), pass);
  float* const output = at_distance(pass.at(step.output), pass.peers.distances[step.taker]);
  const size_t row_bytes = step.columns * sizeof(float);
  for (size_t row = mine.begin; row < mine.end; ++row) {
    std::memcpy(output + row * step.output_stride, pass.at(step.input) + row * step.input_stride,
                row_bytes);
  }
  pass.counters.exchange_bytes.add(mine.size() * row_bytes);
}

}  // namespace lockstep
