#include "engine/operations/convolution/convolution_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/base/checked_math.h"
#include "engine/operations/step_text.h"
#include "engine/pass/pass.h"
#include "engine/pass/plain_rows.h"
#include "engine/pass/sequence_states.h"
#include "engine/pass/step_rows.h"

namespace lockstep {
namespace {

// Columns that are computed at once: their factors are on the stack, tap by tap.
constexpr size_t kConvolvedAtOnce = 128;

class Convolution {
 public:
  Convolution(const ConvolutionPart& part, const Pass& pass, Range columns)
      : part_(part), pass_(pass), columns_(columns) {
    const float* factors = pass.at(part.factors) + columns.begin * part.taps;
    for (size_t column = 0; column < columns.size(); ++column) {
      for (size_t tap = 0; tap < part.taps; ++tap) factors_[tap][column] = *factors++;
    }
  }

  // All tokens of the pass.
  void compute() {
    const auto compute_run = [&](Range tokens) {
      for (size_t token = tokens.begin; token < tokens.end; ++token) compute(token);
    };
    for_each_run(pass_, pass_.batch.tokens.size(), compute_run, [&](size_t from, size_t to) {
      copy_state(state_in(from), state_in(to), part_.taps - 1, part_.state_stride, columns_.size());
    });
  }

 private:
  float* state_in(size_t slot) const {
    return pass_.at(part_.state) + slot * (part_.taps - 1) * part_.state_stride + columns_.begin;
  }
  const float* columns_of(const PlainRows& rows, size_t token) const {
    return rows.rows ? row_of(rows, token, pass_) + columns_.begin : nullptr;
  }

  void compute(size_t token) {
    const BatchToken& where = pass_.batch.tokens[token];
    const size_t ring = part_.taps - 1;
    float* const state = state_in(pass_.batch.state_slots[where.sequence]);
    std::array<const float*, kMostTaps> earlier = {};
    for (size_t tap = 0; tap < ring; ++tap) {
      const size_t behind = ring - tap;
      if (where.position < behind) continue;
      earlier[tap] = state + (where.position - behind) % ring * part_.state_stride;
    }
    alignas(64) float values[kConvolvedAtOnce];
    pass_.kernels.convolve({.x = columns_of(part_.x, token),
                            .before = columns_of(part_.before, token),
                            .behind = columns_of(part_.behind, token),
                            .factors = factors_.front().data(),
                            .factor_stride = kConvolvedAtOnce,
                            .taps = part_.taps,
                            .bias = part_.bias ? pass_.at(part_.bias) + columns_.begin : nullptr,
                            .earlier = earlier.data(),
                            .input = state + where.position % ring * part_.state_stride,
                            .count = columns_.size()},
                           values);
    if (part_.activation) {
      activation_kernel(pass_.kernels, part_.activation->function)(
          values, columns_.size(), part_.activation->parameters.data(), values);
    }
    write_output(pass_, values, part_.output, token, columns_,
                 token < pass_.batch.generated_tokens);
  }

  const ConvolutionPart& part_;
  const Pass& pass_;
  const Range columns_;
  alignas(64) std::array<std::array<float, kConvolvedAtOnce>, kMostTaps> factors_;
};

std::string text_of(const ConvolutionPart& part) {
  return fmt::format(
      " part ({} before {} behind {} taps {} factors {} bias {} state {} columns {}{}{})",
      text_of(part.x), text_of(part.before), text_of(part.behind), part.taps, text_of(part.factors),
      text_of(part.bias), text_of(part.state, part.state_stride), part.columns,
      part.activation ? " activation " + text_of(*part.activation) : "", text_of(part.output));
}

}  // namespace

std::string text_of(const ConvolutionStep& step) {
  std::string all = "convolution";
  for (const ConvolutionPart& part : step.parts) all += text_of(part);
  return all;
}

void run(const ConvolutionStep& step, const Pass& pass, TaskCounter&) {
  size_t all = 0;
  for (const ConvolutionPart& part : step.parts) all += divide_up(part.columns, kChunkColumns);
  const Range mine = share(all, pass);
  size_t first = 0;  // the chunk with which the part begins
  for (const ConvolutionPart& part : step.parts) {
    const size_t end_chunk = first + divide_up(part.columns, kChunkColumns);
    const size_t begin = (std::clamp(mine.begin, first, end_chunk) - first) * kChunkColumns;
    const size_t end =
        std::min(part.columns, (std::clamp(mine.end, first, end_chunk) - first) * kChunkColumns);
    for (size_t column = begin; column < end; column += kConvolvedAtOnce) {
      Convolution(part, pass, {column, std::min(end, column + kConvolvedAtOnce)}).compute();
    }
    first = end_chunk;
  }
}

}  // namespace lockstep
