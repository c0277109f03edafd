// The steps between operations: what clears, copies, converts and sums what they have computed or
// will.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/graph/step_buffers.h"

namespace lockstep {

struct Pass;
struct TaskCounter;

// Zeroes the pages that the batch hands out. Work is shared by their parts.
struct ClearPagesStep {
  friend bool operator==(const ClearPagesStep&, const ClearPagesStep&) = default;
};

// Copies states from slot to slot, as the batch says and in its order. Each worker makes all
// copies, of floats of its own.
struct CopyStatesStep {
  // The state of a node: [slot][slot_floats].
  struct Part {
    ArenaOffset<float> slots = {};
    size_t slot_floats = 0;

    friend bool operator==(const Part&, const Part&) = default;
  };
  std::vector<Part> parts;

  friend bool operator==(const CopyStatesStep&, const CopyStatesStep&) = default;
};

// f32 to the forms in which it is consumed.
struct FormStep {
  Rows rows = Rows::kTokens;
  Routing routing = {};  // with kExperts
  ArenaOffset<const float> input = {};
  size_t input_stride = 0;
  size_t columns = 0;  // of the input
  FormsOutput output;

  friend bool operator==(const FormStep&, const FormStep&) = default;
};

// output += the sum of the contributors' partial results, in order of rank.
struct AllReduceStep {
  std::vector<size_t> contributors;  // ranks
  Rows rows = Rows::kTokens;
  ArenaOffset<const float> partial = {};
  size_t partial_stride = 0;
  ArenaOffset<float> output = {};
  size_t output_stride = 0;
  size_t columns = 0;
  // In the exchange arena, where sums travel as bf16; none: they travel as f32.
  ArenaOffset<uint16_t> bf16_partial = {};
  ArenaOffset<uint16_t> bf16_sum = {};

  friend bool operator==(const AllReduceStep&, const AllReduceStep&) = default;
};

// At a border between two ranks' layers one of them, `giver`, copies a residual into the exchange
// arena of the other, `taker`, which goes on with it there. All ranks have the step.
struct HandOverStep {
  size_t giver = 0;
  size_t taker = 0;
  size_t columns = 0;
  ArenaOffset<const float> input = {};  // the giver's rows; none: of another rank
  size_t input_stride = 0;              // floats
  ArenaOffset<float> output = {};       // the taker's rows
  size_t output_stride = 0;

  friend bool operator==(const HandOverStep&, const HandOverStep&) = default;
};

std::string text_of(const ClearPagesStep& step);
std::string text_of(const CopyStatesStep& step);
std::string text_of(const FormStep& step);
std::string text_of(const AllReduceStep& step);
std::string text_of(const HandOverStep& step);

// Sends the rows in f32 that this rank holds to the others, where another device has computed the
// step.
void push_formed_rows(const FormStep& step, const Pass& pass);

void run(const ClearPagesStep& step, const Pass& pass, TaskCounter& tasks);
void run(const CopyStatesStep& step, const Pass& pass, TaskCounter& tasks);
void run(const FormStep& step, const Pass& pass, TaskCounter& tasks);
void run(const AllReduceStep& step, const Pass& pass, TaskCounter& tasks);
void run(const HandOverStep& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
