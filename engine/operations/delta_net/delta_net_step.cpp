#include "engine/operations/delta_net/delta_net_step.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "engine/base/checked_math.h"
#include "engine/operations/step_text.h"
#include "engine/pass/pass.h"
#include "engine/pass/plain_rows.h"
#include "engine/pass/step_rows.h"

namespace lockstep {
namespace {

// Columns of a head's values that are a task of their own: their part of a state of 128 dimensions
// fits half of a first cache.
constexpr size_t kDeltaColumns = 64;

// One token of one head, on the stack.
struct DeltaOperands {
  alignas(64) float q[kMostDeltaDimensions];
  alignas(64) float k[kMostDeltaDimensions];
  float decay = 0;
  float beta = 0;
};

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

// Few numbers of a head, in f64 as a routing's are: the same on every instruction set.
void find_operands(const DeltaNetStep& step, const Pass& pass, size_t token, size_t head,
                   DeltaOperands& operands) {
  const size_t first = step.key_heads[head] * step.dimension;
  const float* const q = row_of(step.q, token, pass) + first;
  const float* const k = row_of(step.k, token, pass) + first;
  const float q_factor =
      inverse_length(q, step, pass) / std::sqrt(static_cast<float>(step.dimension));
  const float k_factor = inverse_length(k, step, pass);
  for (size_t i = 0; i < step.dimension; ++i) {
    operands.q[i] = q[i] * q_factor;
    operands.k[i] = k[i] * k_factor;
  }
  const double x = double{row_of(step.alpha, token, pass)[head]} + pass.at(step.bias)[head];
  const double softplus = x > 30 ? x : std::log1p(std::exp(x));
  operands.decay = static_cast<float>(std::exp(pass.at(step.decay)[head] * softplus));
  operands.beta =
      static_cast<float>(1 / (1 + std::exp(-double{row_of(step.beta, token, pass)[head]})));
}

void compute(const DeltaNetStep& step, const Pass& pass, size_t head, Range columns) {
  DeltaOperands operands;
  alignas(64) float values[kDeltaColumns];
  const size_t first = head * step.value_dimension + columns.begin;
  for (size_t token = 0; token < pass.batch.tokens.size(); ++token) {
    const BatchToken& where = pass.batch.tokens[token];
    const size_t row =
        (pass.batch.state_slots[where.sequence] * step.head_count() + head) * step.dimension;
    float* const state = pass.at(step.state) + row * step.state_stride + columns.begin;
    if (where.position == 0) {
      for (size_t i = 0; i < step.dimension; ++i) {
        std::fill_n(state + i * step.state_stride, columns.size(), 0.0F);
      }
    }
    find_operands(step, pass, token, head, operands);
    pass.kernels.apply_delta({.q = operands.q,
                              .k = operands.k,
                              .v = row_of(step.v, token, pass) + first,
                              .decay = operands.decay,
                              .beta = operands.beta,
                              .dimension = step.dimension,
                              .state = state,
                              .state_stride = step.state_stride,
                              .count = columns.size()},
                             values);
    write_output(pass, values, step.output, token, {first, first + columns.size()},
                 token < pass.batch.generated_tokens);
  }
}

}  // namespace

std::string text_of(const DeltaNetStep& step) {
  return fmt::format(
      "delta net v {} q {} k {} beta {} alpha {} decay {} bias {} key heads {} epsilon {} "
      "dimensions {} and {} state {}{}",
      text_of(step.v), text_of(step.q), text_of(step.k), text_of(step.beta), text_of(step.alpha),
      text_of(step.decay), text_of(step.bias), fmt::join(step.key_heads, " "), step.epsilon,
      step.dimension, step.value_dimension, text_of(step.state, step.state_stride),
      text_of(step.output));
}

void run(const DeltaNetStep& step, const Pass& pass, TaskCounter&) {
  const size_t parts = divide_up(step.value_dimension, kDeltaColumns);
  const Range mine = share(step.head_count() * parts, pass);
  for (size_t unit = mine.begin; unit < mine.end; ++unit) {
    const size_t begin = unit % parts * kDeltaColumns;
    compute(step, pass, unit / parts,
            {begin, std::min(step.value_dimension, begin + kDeltaColumns)});
  }
}

}  // namespace lockstep
