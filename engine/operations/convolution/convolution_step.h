// The step of causal convolutions, which keep the last tokens' inputs of every sequence.
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

// The state is a ring: what the token at position p brings, x or before * x, lies in row p modulo
// (taps - 1), which the earliest token that it sees has had. A step reads nothing of a slot that
// the slot's sequence has not written, so a slot needs no clearing. All columns are the rank's.
struct ConvolutionPart {
  PlainRows x;
  PlainRows before = {};  // or none
  PlainRows behind = {};  // or none
  size_t taps = 0;
  ArenaOffset<const float> factors = {};  // [column][tap]
  ArenaOffset<const float> bias = {};     // or none
  ArenaOffset<float> state = {};          // [slot][row of the ring]
  size_t state_stride = 0;                // floats
  size_t columns = 0;
  std::optional<Activation> activation = std::nullopt;  // of the sums
  PlainOutput output;

  friend bool operator==(const ConvolutionPart&, const ConvolutionPart&) = default;
};

struct ConvolutionStep {
  std::vector<ConvolutionPart> parts;

  friend bool operator==(const ConvolutionStep&, const ConvolutionStep&) = default;
};

std::string text_of(const ConvolutionStep& step);

// Work is shared by chunks of all parts' columns: a worker walks over all tokens of its own, in
// order.
void run(const ConvolutionStep& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
