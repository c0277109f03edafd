// The step of means over the rows of sequences.
#pragma once

#include <cstddef>
#include <string>

#include "engine/graph/step_buffers.h"

namespace lockstep {

struct Pass;
struct TaskCounter;

// For each token whose logits are asked for the mean of the rows of its sequence's tokens, all of
// which are in the pass. A column is summed in f64, in order of position, by one worker.
struct MeanStep {
  PlainRows x;  // of all tokens
  size_t columns = 0;
  PlainOutput output;

  friend bool operator==(const MeanStep&, const MeanStep&) = default;
};

std::string text_of(const MeanStep& step);
void run(const MeanStep& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
