// The step of a gated delta net, which keeps a matrix of every value head of every sequence, and
// of the norm and the gate of what it gives.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "engine/graph/step_buffers.h"
#include "engine/kernels/activation_function.h"

namespace lockstep {

struct Pass;
struct TaskCounter;

// The norm of each head's values, and then the gate: activation(open) * values.
struct DeltaGate {
  ArenaOffset<const float> norm = {};  // [value dimension]; all heads have it
  float epsilon = 0;
  Activation activation = {};
  PlainRows open;  // the columns that the values have

  friend bool operator==(const DeltaGate&, const DeltaGate&) = default;
};

// Factors of each head: in columns of the rows that follow one another.
struct HeadFactors {
  PlainRows rows;
  std::vector<uint32_t> columns = {};  // [head]: the first one

  friend bool operator==(const HeadFactors&, const HeadFactors&) = default;
};

// The heads are the rank's. A state is a matrix [dimension][value dimension] for each of them, one
// after another; it is zeroed where a sequence begins.
struct DeltaNetStep {
  PlainRows v;
  PlainRows q;  // of the key heads from the first one on that `key_heads` counts from
  PlainRows k;
  HeadFactors beta;
  HeadFactors alpha;
  ArenaOffset<const float> decay = {};   // [head]
  ArenaOffset<const float> bias = {};    // [head][decays]
  std::vector<uint32_t> key_heads = {};  // [head]: its place among those of q and k
  size_t decays = 1;                     // of a head: one, or one for each dimension of its key
  float epsilon = 0;
  size_t dimension = 0;
  size_t value_dimension = 0;
  ArenaOffset<float> state = {};  // [slot][head][dimension]
  size_t state_stride = 0;        // floats
  std::optional<DeltaGate> gate = std::nullopt;
  PlainOutput output;  // of the values, or of what the gate makes of them

  size_t head_count() const { return key_heads.size(); }
  friend bool operator==(const DeltaNetStep&, const DeltaNetStep&) = default;
};

std::string text_of(const DeltaNetStep& step);

// Work is shared by heads, and by columns of their values where there is no gate: a worker walks
// over all tokens of its own, in order.
void run(const DeltaNetStep& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
