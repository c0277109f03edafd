// The step of products.
#pragma once

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "engine/graph/step_buffers.h"
#include "engine/kernels/activation_function.h"
#include "engine/kernels/profile.h"

namespace lockstep {

struct Pass;
struct TaskCounter;

struct MatmulPart {
  PlannedMatrix matrix;
  ProductForms forms;
  size_t first_column = 0;  // of the input: the next ones are the matrix's
  ArenaOffset<const float> bias = {};
  ArenaOffset<float> output = {};
  size_t output_stride = 0;
  bool accumulate = false;  // the residual is added to
  bool remote = false;      // the output lies on another rank

  friend bool operator==(const MatmulPart&, const MatmulPart&) = default;
};

// After a part's rows have been added to the residual: the norms that read it.
struct ResidualFinish {
  std::vector<NormOutput> norms;

  friend bool operator==(const ResidualFinish&, const ResidualFinish&) = default;
};

// After the rows of both parts: activation(the first's) * the second's; of one part alone:
// activation(the part's).
struct GateFinish {
  Activation activation = {};
  FormsOutput output;

  friend bool operator==(const GateFinish&, const GateFinish&) = default;
};

// Several products of one input. Their panels are shared among the workers as one list; with a
// finish, the worker that computed rows finishes them.
struct MatmulStep {
  Rows rows = Rows::kTokens;
  Forms input;
  NormFactor norm;
  std::vector<MatmulPart> parts;
  std::variant<std::monostate, ResidualFinish, GateFinish> finish;

  friend bool operator==(const MatmulStep&, const MatmulStep&) = default;
};

std::string text_of(const MatmulStep& step);
std::string text_of(const ResidualFinish& finish);

// Which panels for which rows, and what follows on them. Few rows: every worker computes the same
// panels in every pass, so that a weight is always read by the worker that read it before. Many:
// panels and rows are cut into tasks that are dealt out.
void run(const MatmulStep& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
