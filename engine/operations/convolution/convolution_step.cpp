#include "engine/operations/convolution/convolution_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/base/checked_math.h"
#include "engine/operations/step_text.h"
#include "engine/pass/pass.h"
#include "engine/pass/plain_rows.h"
#include "engine/pass/step_rows.h"

namespace lockstep {
namespace {

// Columns that are computed at once: their factors are on the stack, tap by tap.
constexpr size_t kConvolvedAtOnce = 128;

class Convolution {
 public:
  Convolution(const ConvolutionStep& step, const Pass& pass, Range columns)
      : step_(step), pass_(pass), columns_(columns) {
    const float* factors = pass.at(step.factors) + columns.begin * step.taps;
    for (size_t column = 0; column < columns.size(); ++column) {
      for (size_t tap = 0; tap < step.taps; ++tap) factors_[tap][column] = *factors++;
    }
  }

  void compute(size_t token) {
    const BatchToken& where = pass_.batch.tokens[token];
    const size_t ring = step_.taps - 1;
    float* const state = pass_.at(step_.state) +
                         pass_.batch.state_slots[where.sequence] * ring * step_.state_stride +
                         columns_.begin;
    std::array<const float*, kMostTaps> earlier = {};
    for (size_t tap = 0; tap < ring; ++tap) {
      const size_t behind = ring - tap;
      if (where.position < behind) continue;
      earlier[tap] = state + (where.position - behind) % ring * step_.state_stride;
    }
    alignas(64) float values[kConvolvedAtOnce];
    pass_.kernels.convolve({.x = columns_of(step_.x, token),
                            .before = columns_of(step_.before, token),
                            .behind = columns_of(step_.behind, token),
                            .factors = factors_.front().data(),
                            .factor_stride = kConvolvedAtOnce,
                            .taps = step_.taps,
                            .bias = step_.bias ? pass_.at(step_.bias) + columns_.begin : nullptr,
                            .earlier = earlier.data(),
                            .input = state + where.position % ring * step_.state_stride,
                            .count = columns_.size()},
                           values);
    write_output(pass_, values, step_.output, token, columns_,
                 token < pass_.batch.generated_tokens);
  }

 private:
  const float* columns_of(const PlainRows& rows, size_t token) const {
    return rows.rows ? row_of(rows, token, pass_) + columns_.begin : nullptr;
  }

  const ConvolutionStep& step_;
  const Pass& pass_;
  const Range columns_;
  alignas(64) std::array<std::array<float, kConvolvedAtOnce>, kMostTaps> factors_;
};

}  // namespace

std::string text_of(const ConvolutionStep& step) {
  return fmt::format(
      "convolution {} before {} behind {} taps {} factors {} bias {} state {} columns "
      "{}{}",
      text_of(step.x), text_of(step.before), text_of(step.behind), step.taps, text_of(step.factors),
      text_of(step.bias), text_of(step.state, step.state_stride), step.columns,
      text_of(step.output));
}

void run(const ConvolutionStep& step, const Pass& pass, TaskCounter&) {
  const Range chunks = share(divide_up(step.columns, kChunkColumns), pass);
  const size_t end = std::min(step.columns, chunks.end * kChunkColumns);
  for (size_t begin = chunks.begin * kChunkColumns; begin < end; begin += kConvolvedAtOnce) {
    Convolution convolution(step, pass, {begin, std::min(end, begin + kConvolvedAtOnce)});
    for (size_t token = 0; token < pass.batch.tokens.size(); ++token) convolution.compute(token);
  }
}

}  // namespace lockstep
