#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/base/range.h"
#include "engine/collectives/shared_memory.h"
#include "engine/pass/form_writer.h"
#include "engine/pass/step_rows.h"
#include "engine/runtime/node/steps.h"

namespace lockstep {
namespace {

// A contiguous, even share of `total` units.
Range share(size_t total, const Pass& pass) {
  return share(Range{0, total}, pass.worker, pass.worker_count);
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

void run(const RotaryTableStep& step, const Pass& pass, TaskCounter&) {
  const size_t pairs = step.frequencies.size();
  const Range mine = share(pass.batch.tokens.size(), pass);
  for (size_t token = mine.begin; token < mine.end; ++token) {
    const auto position = static_cast<double>(pass.batch.tokens[token].position);
    float* cosines = pass.at(step.table) + token * step.stride;
    for (size_t pair = 0; pair < pairs; ++pair) {
      const double angle = position * step.frequencies[pair];
      cosines[pair] = static_cast<float>(step.magnitude * std::cos(angle));
      cosines[pairs + pair] = static_cast<float>(step.magnitude * std::sin(angle));
    }
  }
}

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

bool holds_row(const EmbedStep& step, const BatchToken& token) {
  const size_t row = row_of(step, token);
  return row >= step.row_begin && row < step.row_begin + step.table.rows;
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

void run(const MatmulStep& step, const Pass& pass, TaskCounter& tasks) {
  run_product(step, pass, tasks);
}

void run(const RouteStep& step, const Pass& pass, TaskCounter&) {
  run_route(step, pass);
}

void run(const ExpertGateStep& step, const Pass& pass, TaskCounter& tasks) {
  run_expert_gate(step, pass, tasks);
}

void run(const ExpertSumStep& step, const Pass& pass, TaskCounter& tasks) {
  run_expert_sum(step, pass, tasks);
}

void run(const AttendStep& step, const Pass& pass, TaskCounter& tasks) {
  run_attention(step, pass, tasks);
}

void run(const FormStep& step, const Pass& pass, TaskCounter&) {
  const StepRows rows(step.rows, step.routing, pass);
  for_each_stretch(rows.count(), step.columns, pass, [&](size_t row, Range columns) {
    write_forms(pass, pass.at(step.input) + row * step.input_stride + columns.begin, step.output,
                row, columns, rows.is_generated(row));
  });
}

void run(const ElementwiseStep& step, const Pass& pass, TaskCounter&) {
  run_elementwise(step, pass);
}

void run(const CopyHeadsStep& step, const Pass& pass, TaskCounter&) {
  run_copy_heads(step, pass);
}
void run(const HeadsStep& step, const Pass& pass, TaskCounter&) {
  run_heads(step, pass);
}

void run(const NormSumsStep& step, const Pass& pass, TaskCounter&) {
  run_norm_sums(step, pass);
}

void run(const NormScaleStep& step, const Pass& pass, TaskCounter&) {
  run_norm_scale(step, pass);
}

void run(const ExpertProductStep& step, const Pass& pass, TaskCounter& tasks) {
  run_expert_product(step, pass, tasks);
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

}  // namespace

void exchange_step(const StepWork& step, const Pass& pass, TaskCounter& tasks) {
  if (std::holds_alternative<AllReduceStep>(step)) return run_step(step, pass, tasks);
  const auto* embed = std::get_if<EmbedStep>(&step);
  if (embed == nullptr || !embed->gather) return;
  for (size_t token = 0; token < pass.batch.tokens.size(); ++token) {
    if (!holds_row(*embed, pass.batch.tokens[token])) continue;
    push(pass, pass.at(embed->output) + token * embed->output_stride,
         embed->table.columns * sizeof(float));
  }
}

void run_step(const StepWork& step, const Pass& pass, TaskCounter& tasks) {
  std::visit([&](const auto& kind) { run(kind, pass, tasks); }, step);
}

}  // namespace lockstep
