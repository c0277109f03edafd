// The steps of operations on each head by itself: norms and rotary positions, and copies of
// columns.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/graph/step_buffers.h"
#include "engine/kernels/rotary.h"

namespace lockstep {

struct Pass;
struct TaskCounter;

// table[token]: the cosines, then the sines of every pair's angle at the token's position and
// `offset` behind it, times `magnitude`.
struct RotaryTableStep {
  std::vector<double> frequencies;  // Rotary's
  double magnitude = 1;
  size_t offset = 0;
  ArenaOffset<float> table = {};
  size_t stride = 0;

  friend bool operator==(const RotaryTableStep&, const RotaryTableStep&) = default;
};

// The norm, or the rotary positions, of each head by itself. Work is shared by rows and heads.
struct HeadsStep {
  PlainRows input;
  size_t head_count = 0;
  size_t head_dimension = 0;
  bool is_normed = false;
  bool subtracts_mean = false;
  ArenaOffset<const float> norm = {};  // its weight, or none
  size_t norm_stride = 0;              // from one head's weight to the next; 0: all have the same
  float epsilon = 0;
  RotaryPairs pairs = RotaryPairs::kInterleaved;
  RotaryTable rotary = {};
  ArenaOffset<float> output = {};
  size_t output_stride = 0;

  friend bool operator==(const HeadsStep&, const HeadsStep&) = default;
};

// Some columns of each head of a value in f32.
struct HeadColumns {
  PlainRows input;
  size_t head_stride = 0;  // columns; 0: one head for all
  size_t first = 0;        // of a head's columns
  size_t columns = 0;

  friend bool operator==(const HeadColumns&, const HeadColumns&) = default;
};

// A copy of all parts' columns of each head, one part's after another's. Work is shared by rows and
// chunks of columns.
struct CopyHeadsStep {
  Rows rows = Rows::kTokens;
  Routing routing = {};  // with kExperts
  std::vector<HeadColumns> parts;
  size_t columns = 0;  // of all heads
  PlainOutput output;

  friend bool operator==(const CopyHeadsStep&, const CopyHeadsStep&) = default;
};

std::string text_of(const RotaryTableStep& step);
std::string text_of(const HeadsStep& step);
std::string text_of(const CopyHeadsStep& step);

void run(const RotaryTableStep& step, const Pass& pass, TaskCounter& tasks);
void run(const HeadsStep& step, const Pass& pass, TaskCounter& tasks);
void run(const CopyHeadsStep& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
