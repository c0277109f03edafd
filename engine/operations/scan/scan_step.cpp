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

// Neighbouring heads that one worker computes.
class ScanHeads {
 public:
  ScanHeads(const ScanStep& step, const Pass& pass, Range heads)
      : step_(step), pass_(pass), heads_(heads) {}

  // All tokens of the pass.
  void compute() {
    for_each_run(pass_, kTokensAtOnce, [&](Range tokens) { compute(tokens); });
  }

 private:
  float* state_of(const BatchToken& token, size_t head) const {
    const size_t slot = pass_.batch.state_slots[token.sequence];
    return pass_.at(step_.state) +
           (slot * step_.head_count() + head) * step_.dimension * step_.state_stride;
  }
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
  float* const state = state_of(pass_.batch.tokens[tokens.begin], head);
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

// The fewest heads whose columns are whole chunks.
size_t heads_at_once(const ScanStep& step) {
  return kChunkColumns / std::gcd(kChunkColumns, step.value_dimension);
}

}  // namespace

std::string text_of(const ScanStep& step) {
  return fmt::format(
      "scan x {} c {} b {} steps {} decay {} bias {} skip {} groups {} dimensions {} and {} state "
      "{}{}",
      text_of(step.x), text_of(step.c), text_of(step.b), text_of(step.steps), text_of(step.decay),
      text_of(step.bias), text_of(step.skip), fmt::join(step.groups, " "), step.dimension,
      step.value_dimension, text_of(step.state, step.state_stride), text_of(step.output));
}

void run(const ScanStep& step, const Pass& pass, TaskCounter&) {
  const size_t each = heads_at_once(step);
  const size_t heads = step.head_count();
  const Range mine = share((heads + each - 1) / each, pass);
  for (size_t unit = mine.begin; unit < mine.end; ++unit) {
    ScanHeads(step, pass, {unit * each, std::min(heads, (unit + 1) * each)}).compute();
  }
}

}  // namespace lockstep
