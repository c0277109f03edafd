#include "engine/operations/scan/scan_step.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/operations/step_text.h"
#include "engine/pass/pass.h"
#include "engine/pass/plain_rows.h"
#include "engine/pass/sequence_states.h"
#include "engine/pass/step_rows.h"

namespace lockstep {
namespace {

// Tokens of a sequence that are computed together: their results are on the stack.
constexpr size_t kTokensAtOnce = 16;

// The first row of a head's matrix.
float* state_in(const ScanStep& step, const Pass& pass, size_t slot, size_t head) {
  const size_t matrix = step.dimension * step.state_stride;
  float* const state = pass.at(step.state);
  return step.is_side_by_side() ? state + slot * matrix + head
                                : state + (slot * step.head_count() + head) * matrix;
}

float* state_of(const ScanStep& step, const Pass& pass, const BatchToken& token, size_t head) {
  return state_in(step, pass, pass.batch.state_slots[token.sequence], head);
}

// Copies the state of neighbouring heads of one column, or of one head.
void copy_heads(const ScanStep& step, const Pass& pass, size_t from, size_t to, Range heads) {
  copy_state(state_in(step, pass, from, heads.begin), state_in(step, pass, to, heads.begin),
             step.dimension, step.state_stride, heads.size() * step.value_dimension);
}

// Neighbouring heads that one worker computes, and that decay as a whole.
class ScanHeads {
 public:
  ScanHeads(const ScanStep& step, const Pass& pass, Range heads)
      : step_(step), pass_(pass), heads_(heads) {}

  // All tokens of the pass.
  void compute() {
    for_each_run(
        pass_, kTokensAtOnce, [&](Range tokens) { compute(tokens); },
        [&](size_t from, size_t to) {
          for (size_t head = heads_.begin; head < heads_.end; ++head) {
            copy_heads(step_, pass_, from, to, {head, head + 1});
          }
        });
  }

 private:
  ScanToken token_of(size_t token, size_t head) const;
  void compute(Range tokens);
  void scan(Range tokens, size_t head);

  const ScanStep& step_;
  const Pass& pass_;
  const Range heads_;
  ScanToken tokens_[kTokensAtOnce];
  alignas(64) float values_[kTokensAtOnce][kMostScannedColumns];
};

// Few numbers of a head, in f64 as a routing's are: the same on every instruction set.
ScanToken ScanHeads::token_of(size_t token, size_t head) const {
  const size_t group = step_.groups[head] * step_.dimension;
  const double x = double{row_of(step_.steps, token, pass_)[head]} + pass_.at(step_.bias)[head];
  const double step = softplus(x);
  return {.c = row_of(step_.c, token, pass_) + group,
          .b = row_of(step_.b, token, pass_) + group,
          .x = row_of(step_.x, token, pass_) + head * step_.value_dimension,
          .decay = static_cast<float>(std::exp(pass_.at(step_.decay)[head] * step)),
          .step = static_cast<float>(step)};
}

void ScanHeads::scan(Range tokens, size_t head) {
  float* const state = state_of(step_, pass_, pass_.batch.tokens[tokens.begin], head);
  clear_at_begin(pass_, tokens, state, step_.dimension, step_.state_stride, step_.value_dimension);
  for (size_t token = tokens.begin; token < tokens.end; ++token) {
    const size_t place = token - tokens.begin;
    tokens_[place] = token_of(token, head);
    tokens_[place].out = values_[place] + (head - heads_.begin) * step_.value_dimension;
  }
  pass_.kernels.apply_scan({.tokens = tokens_,
                            .token_count = tokens.size(),
                            .dimension = step_.dimension,
                            .skip = pass_.at(step_.skip)[head],
                            .state = state,
                            .state_stride = step_.state_stride,
                            .count = step_.value_dimension});
}

// Tokens of one sequence.
void ScanHeads::compute(Range tokens) {
  for (size_t head = heads_.begin; head < heads_.end; ++head) scan(tokens, head);
  const Range columns = {heads_.begin * step_.value_dimension, heads_.end * step_.value_dimension};
  for (size_t token = tokens.begin; token < tokens.end; ++token) {
    write_output(pass_, values_[token - tokens.begin], step_.output, token, columns,
                 token < pass_.batch.generated_tokens);
  }
}

// Neighbouring heads of one column that one worker computes, and whose rows decay by themselves.
class ScanColumns {
 public:
  ScanColumns(const ScanStep& step, const Pass& pass, Range heads)
      : step_(step), pass_(pass), heads_(heads) {
    const float* decay = pass.at(step.decay) + heads.begin * step.decay_count;
    for (size_t head = 0; head < heads.size(); ++head) {
      for (size_t row = 0; row < step.dimension; ++row) decay_[row][head] = *decay++;
    }
  }

  // All tokens of the pass.
  void compute() {
    for_each_run(
        pass_, kTokensAtOnce, [&](Range tokens) { compute(tokens); },
        [&](size_t from, size_t to) { copy_heads(step_, pass_, from, to, heads_); });
  }

 private:
  void compute(Range tokens);

  const ScanStep& step_;
  const Pass& pass_;
  const Range heads_;
  alignas(64) float decay_[kMostDeltaDimensions][kChunkColumns];
};

// Tokens of one sequence.
void ScanColumns::compute(Range tokens) {
  const size_t first = heads_.begin;
  ScanHeadsToken rows[kTokensAtOnce];
  alignas(64) float steps[kTokensAtOnce][kChunkColumns];
  alignas(64) float values[kTokensAtOnce][kChunkColumns];
  for (size_t token = tokens.begin; token < tokens.end; ++token) {
    const size_t place = token - tokens.begin;
    rows[place] = {.c = row_of(step_.c, token, pass_),
                   .b = row_of(step_.b, token, pass_),
                   .x = row_of(step_.x, token, pass_) + first,
                   .steps = row_of(step_.steps, token, pass_) + first,
                   .step = steps[place],
                   .out = values[place]};
  }
  float* const state = state_of(step_, pass_, pass_.batch.tokens[tokens.begin], first);
  clear_at_begin(pass_, tokens, state, step_.dimension, step_.state_stride, heads_.size());
  pass_.kernels.apply_scan_heads({.tokens = rows,
                                  .token_count = tokens.size(),
                                  .dimension = step_.dimension,
                                  .decay = decay_[0],
                                  .decay_stride = kChunkColumns,
                                  .bias = pass_.at(step_.bias) + first,
                                  .skip = pass_.at(step_.skip) + first,
                                  .state = state,
                                  .state_stride = step_.state_stride,
                                  .count = heads_.size()});
  for (size_t token = tokens.begin; token < tokens.end; ++token) {
    write_output(pass_, values[token - tokens.begin], step_.output, token, heads_,
                 token < pass_.batch.generated_tokens);
  }
}

// The fewest heads whose columns are whole chunks.
size_t heads_at_once(const ScanStep& step) {
  return kChunkColumns / std::gcd(kChunkColumns, step.value_dimension);
}

}  // namespace

std::string text_of(const ScanStep& step) {
  const std::string groups =
      step.is_side_by_side() ? "" : fmt::format(" groups {}", fmt::join(step.groups, " "));
  return fmt::format(
      "scan x {} c {} b {} steps {} decay {}{} bias {} skip {}{} dimensions {} and {} state {}{}",
      text_of(step.x), text_of(step.c), text_of(step.b), text_of(step.steps), text_of(step.decay),
      step.decay_count == 1 ? "" : fmt::format(" of {}", step.decay_count), text_of(step.bias),
      text_of(step.skip), groups, step.dimension, step.value_dimension,
      text_of(step.state, step.state_stride), text_of(step.output));
}

void run(const ScanStep& step, const Pass& pass, TaskCounter&) {
  const size_t each = heads_at_once(step);
  const size_t heads = step.head_count();
  const Range mine = share((heads + each - 1) / each, pass);
  for (size_t unit = mine.begin; unit < mine.end; ++unit) {
    const Range own = {unit * each, std::min(heads, (unit + 1) * each)};
    if (step.decay_count == 1) {
      ScanHeads(step, pass, own).compute();
    } else {
      ScanColumns(step, pass, own).compute();
    }
  }
}

}  // namespace lockstep
