// The step of functions of each element by itself.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/graph/graph.h"
#include "engine/graph/step_buffers.h"
#include "engine/kernels/activation_function.h"
#include "engine/kernels/gpu_values.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {

struct Pass;
struct TaskCounter;
struct ElementwiseStep;

// Some columns of one row of a step.
struct ElementwiseRow {
  const float* x = nullptr;  // `count` of them; none where the function has no operand
  const float* y = nullptr;  // likewise, or the row's factor
  size_t count = 0;
  size_t position = 0;  // of the row's token in its sequence
};

// The function of a step. There is one object of each, beside its operation's row: two functions
// are equal if they are one object.
struct ElementwiseFunction {
  std::string_view name;  // as plan_text() has it
  void (*apply)(const ElementwiseStep& step, const ElementwiseRow& row, const KernelTable& kernels,
                float* out) = nullptr;
  GpuFunction gpu_function = GpuFunction::kCopy;  // the same of GPUs
  bool selects = false;      // x has a row for each token, of which the logits' are taken
  bool has_factors = false;  // y has one column
};
extern const ElementwiseFunction kZeroFunction;  // 0
extern const ElementwiseFunction kCopyFunction;  // x

// Work is shared by rows and chunks of columns.
struct ElementwiseStep {
  const ElementwiseFunction* function = nullptr;
  Rows rows = Rows::kTokens;
  Routing routing = {};          // with kExperts
  Activation activation = {};    // the node's parameters, as the function reads them
  float scale = 0;               // likewise
  Temperature temperature = {};  // likewise
  PlainRows x;
  PlainRows y;
  size_t columns = 0;
  PlainOutput output;

  friend bool operator==(const ElementwiseStep&, const ElementwiseStep&) = default;
};

std::string text_of(const ElementwiseStep& step);
void run(const ElementwiseStep& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
