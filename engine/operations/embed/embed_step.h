// The steps of what a graph begins with: the rows of a table that tokens look up, and rows that the
// batch brings with its tokens.
#pragma once

#include <cstddef>
#include <string>

#include "engine/graph/graph.h"
#include "engine/graph/step_buffers.h"

namespace lockstep {

struct BatchToken;
struct Pass;
struct TaskCounter;

// This rank holds the table's rows from `row_begin` on; other ranks embed the other tokens.
struct EmbedStep {
  EmbedIndex index = EmbedIndex::kToken;
  PlannedMatrix table;
  size_t row_begin = 0;
  ArenaOffset<float> output = {};
  size_t output_stride = 0;
  bool gather = false;

  friend bool operator==(const EmbedStep&, const EmbedStep&) = default;
};

std::string text_of(const EmbedStep& step);
void run(const EmbedStep& step, const Pass& pass, TaskCounter& tasks);

// Copies the batch's rows: every rank has all columns, and those of its own batch.
struct GivenRowsStep {
  size_t columns = 0;
  PlainOutput output;

  friend bool operator==(const GivenRowsStep&, const GivenRowsStep&) = default;
};

std::string text_of(const GivenRowsStep& step);
void run(const GivenRowsStep& step, const Pass& pass, TaskCounter& tasks);

// Whether this rank holds the row that the token looks up.
bool holds_row(const EmbedStep& step, const BatchToken& token);

// Sends the rows that this rank holds to the others, where another device has computed the step.
void push_embedded_rows(const EmbedStep& step, const Pass& pass);

}  // namespace lockstep
