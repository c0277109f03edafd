// The step of a gated delta net, which keeps a matrix of every value head of every sequence.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/graph/step_buffers.h"

namespace lockstep {

struct Pass;
struct TaskCounter;

// The heads are the rank's. A state is a matrix [dimension][value dimension] for each of them, one
// after another; it is zeroed where a sequence begins.
struct DeltaNetStep {
  PlainRows v;
  PlainRows q;  // of the key heads from the first one on that `key_heads` counts from
  PlainRows k;
  PlainRows beta;
  PlainRows alpha;
  ArenaOffset<const float> decay = {};   // [head]
  ArenaOffset<const float> bias = {};    // [head]
  std::vector<uint32_t> key_heads = {};  // [head]: its place among those of q and k
  float epsilon = 0;
  size_t dimension = 0;
  size_t value_dimension = 0;
  ArenaOffset<float> state = {};  // [slot][head][dimension]
  size_t state_stride = 0;        // floats
  PlainOutput output;

  size_t head_count() const { return key_heads.size(); }
  friend bool operator==(const DeltaNetStep&, const DeltaNetStep&) = default;
};

std::string text_of(const DeltaNetStep& step);

// Work is shared by heads and columns of their values: a worker walks over all tokens of its own,
// in order.
void run(const DeltaNetStep& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
