#include "engine/operations/delta_net/delta_net_step.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "engine/base/checked_math.h"
#include "engine/operations/step_text.h"
#include "engine/pass/pass.h"
#include "engine/pass/plain_rows.h"
#include "engine/pass/sequence_states.h"
#include "engine/pass/step_rows.h"

namespace lockstep {
namespace {

// Without a gate, columns of a head's values that are a task of their own.
constexpr size_t kDeltaColumns = 64;
static_assert(kDeltaColumns <= kMostGatedDimensions);

// Tokens of a sequence that are computed together: what a head reads of them is on the stack.
constexpr size_t kTokensAtOnce = 16;

// The sum of squares is a norm's: chunk by chunk.
float inverse_length(const float* x, const DeltaNetStep& step, const Pass& pass) {
  float chunks[divide_up(kMostDeltaDimensions, kChunkColumns)];
  pass.kernels.sum_squares(x, step.dimension, chunks);
  float sum = 0;
  for (size_t chunk = 0; chunk < divide_up(step.dimension, kChunkColumns); ++chunk) {
    sum += chunks[chunk];
  }
  return 1.0F / std::sqrt(sum + step.epsilon);
}

// A worker's columns of one head.
class DeltaHead {
 public:
  DeltaHead(const DeltaNetStep& step, const Pass& pass, size_t head, Range columns)
      : step_(step),
        pass_(pass),
        head_(head),
        columns_(columns),
        first_(head * step.value_dimension + columns.begin) {}

  // All tokens of the pass.
  void compute() {
    for_each_run(
        pass_, kTokensAtOnce, [&](Range tokens) { compute(tokens); },
        [&](size_t from, size_t to) {
          copy_state(state_in(from), state_in(to), step_.dimension, step_.state_stride,
                     columns_.size());
        });
  }

 private:
  float* state_of(const BatchToken& token) const {
    return state_in(pass_.batch.state_slots[token.sequence]);
  }
  float* state_in(size_t slot) const {
    const size_t row = (slot * step_.head_count() + head_) * step_.dimension;
    return pass_.at(step_.state) + row * step_.state_stride + columns_.begin;
  }
  const float* factors_of(const HeadFactors& factors, size_t token) const {
    return row_of(factors.rows, token, pass_) + factors.columns[head_];
  }
  // `place`: among those of the head.
  float decay_of(size_t token, size_t place) const;
  void compute(Range tokens);
  void find_operands(size_t token, size_t place);
  void write(size_t token, float* values) const;

  const DeltaNetStep& step_;
  const Pass& pass_;
  const size_t head_;
  const Range columns_;
  const size_t first_;  // of the columns, among the rank's
  DeltaToken tokens_[kTokensAtOnce];
  alignas(64) float q_[kTokensAtOnce][kMostDeltaDimensions];
  alignas(64) float k_[kTokensAtOnce][kMostDeltaDimensions];
  // The decays of heads that have several, and k times these.
  alignas(64) float decays_[kTokensAtOnce][kMostDeltaDimensions];
  alignas(64) float kept_k_[kTokensAtOnce][kMostDeltaDimensions];
  alignas(64) float values_[kTokensAtOnce][kMostGatedDimensions];
};

// Few numbers of a head, in f64 as a routing's are: the same on every instruction set.
void DeltaHead::find_operands(size_t token, size_t place) {
  const size_t key = step_.key_heads[head_] * step_.dimension;
  const float* const q = row_of(step_.q, token, pass_) + key;
  const float* const k = row_of(step_.k, token, pass_) + key;
  const float q_factor =
      inverse_length(q, step_, pass_) / std::sqrt(static_cast<float>(step_.dimension));
  const float k_factor = inverse_length(k, step_, pass_);
  for (size_t i = 0; i < step_.dimension; ++i) {
    q_[place][i] = q[i] * q_factor;
    k_[place][i] = k[i] * k_factor;
  }
  const double beta = *factors_of(step_.beta, token);
  tokens_[place] = {.q = q_[place],
                    .k = k_[place],
                    .v = row_of(step_.v, token, pass_) + first_,
                    .out = values_[place],
                    .decay = decay_of(token, 0),
                    .beta = static_cast<float>(1 / (1 + std::exp(-beta)))};
  if (step_.decays == 1) return;
  for (size_t i = 0; i < step_.dimension; ++i) {
    decays_[place][i] = decay_of(token, i);
    kept_k_[place][i] = k_[place][i] * decays_[place][i];
  }
  tokens_[place].decays = decays_[place];
  tokens_[place].kept_k = kept_k_[place];
}

float DeltaHead::decay_of(size_t token, size_t place) const {
  const double bias = pass_.at(step_.bias)[head_ * step_.decays + place];
  const double x = factors_of(step_.alpha, token)[place] + bias;
  return static_cast<float>(std::exp(pass_.at(step_.decay)[head_] * softplus(x)));
}

// `values`: the head's, which the gate changes.
void DeltaHead::write(size_t token, float* values) const {
  if (step_.gate) {
    const DeltaGate& gate = *step_.gate;
    pass_.kernels.rms_norm(values, pass_.at(gate.norm), columns_.size(), gate.epsilon, values);
    alignas(64) float gated[kMostGatedDimensions];
    gate_kernel(pass_.kernels, gate.activation.function)(row_of(gate.open, token, pass_) + first_,
                                                         values, columns_.size(),
                                                         gate.activation.parameters.data(), gated);
    std::copy_n(gated, columns_.size(), values);
  }
  write_output(pass_, values, step_.output, token, {first_, first_ + columns_.size()},
               token < pass_.batch.generated_tokens);
}

// Tokens of one sequence.
void DeltaHead::compute(Range tokens) {
  float* const state = state_of(pass_.batch.tokens[tokens.begin]);
  clear_at_begin(pass_, tokens, state, step_.dimension, step_.state_stride, columns_.size());
  for (size_t token = tokens.begin; token < tokens.end; ++token) {
    find_operands(token, token - tokens.begin);
  }
  pass_.kernels.apply_delta({.tokens = tokens_,
                             .token_count = tokens.size(),
                             .dimension = step_.dimension,
                             .state = state,
                             .state_stride = step_.state_stride,
                             .count = columns_.size()});
  for (size_t token = tokens.begin; token < tokens.end; ++token) {
    write(token, values_[token - tokens.begin]);
  }
}

std::string text_of(const HeadFactors& factors) {
  return fmt::format("{} columns {}", text_of(factors.rows), fmt::join(factors.columns, " "));
}

std::string text_of(const std::optional<DeltaGate>& gate) {
  if (!gate) return "";
  return fmt::format(" norm {} epsilon {} gate {}{}", text_of(gate->norm), gate->epsilon,
                     text_of(gate->activation), text_of(gate->open));
}

}  // namespace

std::string text_of(const DeltaNetStep& step) {
  return fmt::format(
      "delta net v {} q {} k {} beta {} alpha {} decay {}{} bias {} key heads {} epsilon {} "
      "dimensions {} and {} state {}{}{}",
      text_of(step.v), text_of(step.q), text_of(step.k), text_of(step.beta), text_of(step.alpha),
      text_of(step.decay), step.decays == 1 ? "" : fmt::format(" of {} each", step.decays),
      text_of(step.bias), fmt::join(step.key_heads, " "), step.epsilon, step.dimension,
      step.value_dimension, text_of(step.state, step.state_stride), text_of(step.gate),
      text_of(step.output));
}

void run(const DeltaNetStep& step, const Pass& pass, TaskCounter&) {
  const size_t columns = step.gate ? step.value_dimension : kDeltaColumns;
  const size_t parts = divide_up(step.value_dimension, columns);
  const Range mine = share(step.head_count() * parts, pass);
  for (size_t unit = mine.begin; unit < mine.end; ++unit) {
    const size_t begin = unit % parts * columns;
    DeltaHead(step, pass, unit / parts, {begin, std::min(step.value_dimension, begin + columns)})
        .compute();
  }
}

}  // namespace lockstep
