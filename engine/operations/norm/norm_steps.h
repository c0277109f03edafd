// The steps of norms: of one that is a factor of products, and of one that is computed as a whole,
// in two steps.
#pragma once

#include <cstddef>
#include <string>

#include "engine/graph/step_buffers.h"

namespace lockstep {

struct Pass;
struct TaskCounter;

// A norm whose residual no product of this rank has just computed.
struct NormStep {
  ArenaOffset<const float> residual = {};
  size_t residual_stride = 0;
  size_t columns = 0;
  Rows residual_rows = Rows::kTokens;  // kLogits: only those have been selected
  NormOutput norm;

  friend bool operator==(const NormStep&, const NormStep&) = default;
};

// The sums of a value's own chunks, for a norm that is no factor: of the squares, or, where the
// mean is subtracted, of the elements and of the squares of their distances from their chunk's
// mean.
struct NormSumsStep {
  Rows rows = Rows::kTokens;
  PlainRows input;
  size_t columns = 0;
  ChunkSums chunks;  // of the squares, from the input's first column on
  ChunkSums sums;    // of the elements; none: the mean is not subtracted
  bool gather = false;

  friend bool operator==(const NormSumsStep&, const NormSumsStep&) = default;
};

// x (or its distance from the mean) times the factor that all chunks' sums give, times the norm's
// weight, plus its bias.
struct NormScaleStep {
  Rows rows = Rows::kTokens;
  PlainRows input;
  size_t columns = 0;
  ArenaOffset<const float> weight = {};  // of the input's columns; or none
  ArenaOffset<const float> bias = {};    // likewise
  NormFactor norm;
  ChunkSums sums;  // NormSumsStep's
  PlainOutput output;

  friend bool operator==(const NormScaleStep&, const NormScaleStep&) = default;
};

std::string text_of(const NormStep& step);
std::string text_of(const NormSumsStep& step);
std::string text_of(const NormScaleStep& step);

// Sends the sums of squares that this rank holds to the others, where another device has computed
// the step.
void push_norm_sums(const NormSumsStep& step, const Pass& pass);

void run(const NormStep& step, const Pass& pass, TaskCounter& tasks);
void run(const NormSumsStep& step, const Pass& pass, TaskCounter& tasks);
void run(const NormScaleStep& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
