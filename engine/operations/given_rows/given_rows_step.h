// The step of rows that a batch brings with its tokens.
#pragma once

#include <cstddef>
#include <string>

#include "engine/graph/step_buffers.h"

namespace lockstep {

struct Pass;
struct TaskCounter;

// Copies them: every rank has all columns, and those of its own batch.
struct GivenRowsStep {
  size_t columns = 0;
  PlainOutput output;

  friend bool operator==(const GivenRowsStep&, const GivenRowsStep&) = default;
};

std::string text_of(const GivenRowsStep& step);
void run(const GivenRowsStep& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
