// The step of a selective scan, which keeps a matrix of every head of every sequence.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/graph/step_buffers.h"

namespace lockstep {

struct Pass;
struct TaskCounter;

// The heads are the rank's. A state is a matrix [dimension][value dimension] for each of them: one
// after another, or side by side where heads have one column. It is zeroed where a sequence begins.
struct ScanStep {
  PlainRows x;
  PlainRows c;  // of the groups from the first one on that `groups` counts from
  PlainRows b;
  PlainRows steps;                      // [head]
  ArenaOffset<const float> decay = {};  // [head][decay_count]
  size_t decay_count = 1;               // 1, or the dimension: each row of a matrix has its own
  ArenaOffset<const float> bias = {};   // [head]
  ArenaOffset<const float> skip = {};   // [head]
  std::vector<uint32_t> groups = {};    // [head]: its place among those of c and b
  size_t dimension = 0;
  size_t value_dimension = 0;
  ArenaOffset<float> state = {};  // [slot][head][dimension], or [slot][dimension]
  size_t state_stride = 0;        // floats
  PlainOutput output;

  size_t head_count() const { return groups.size(); }
  bool is_side_by_side() const { return value_dimension == 1; }
  friend bool operator==(const ScanStep&, const ScanStep&) = default;
};

std::string text_of(const ScanStep& step);

// Work is shared by the fewest heads whose columns are whole chunks: a worker walks over all tokens
// of its own, in order.
void run(const ScanStep& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
