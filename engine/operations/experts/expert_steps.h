// The steps of a mixture's experts: their products, their gates and the sums of what they give.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/graph/step_buffers.h"
#include "engine/kernels/activation_function.h"
#include "engine/kernels/profile.h"
#include "engine/operations/matmul/matmul_step.h"

namespace lockstep {

// The same product of every expert with its rows.
struct ExpertPart {
  std::vector<PlannedMatrix> matrices;                // by expert, all of one format and size
  std::vector<ArenaOffset<const float>> biases = {};  // by expert; none: there are none here
  ProductForms forms;
  ArenaOffset<float> output = {};
  size_t output_stride = 0;

  bool is_scaled() const {
    return std::ranges::any_of(matrices, [](const PlannedMatrix& own) { return own.scale != 1; });
  }
  // Whether rows are done with the product alone.
  bool is_plain() const { return biases.empty() && !is_scaled(); }

  friend bool operator==(const ExpertPart&, const ExpertPart&) = default;
};

// How experts' weights lie: those of expert e at the first one's + e / sharing * stride.
struct ExpertPlaces {
  size_t stride = 0;
  size_t sharing = 1;  // consecutive experts that share weights
};
// None: they lie in no such way. `place(expert)`: a number, of weights or bytes.
template <typename Place>
std::optional<ExpertPlaces> even_places(size_t expert_count, const Place& place) {
  ExpertPlaces places;
  while (places.sharing < expert_count && place(places.sharing) == place(0)) ++places.sharing;
  if (places.sharing < expert_count) places.stride = place(places.sharing) - place(0);
  for (size_t expert = 0; expert < expert_count; ++expert) {
    if (place(expert) - place(0) != expert / places.sharing * places.stride) return std::nullopt;
  }
  return places;
}

// The most rows of an expert that are multiplied at once, and the columns of a sum they go into.
inline constexpr size_t kExpertRows = 256;
inline constexpr size_t kExpertSumColumns = 256;

// Rows of processors' workers, [worker][kExpertRows]. An expert's tokens need not follow one
// another in the batch: a worker brings them together here.
struct GatheredRows {
  Forms rows;
  size_t workers = 0;

  friend bool operator==(const GatheredRows&, const GatheredRows&) = default;
};

// The product of every expert with its rows.
struct ExpertProductStep {
  Forms input;  // [token]
  NormFactor norm;
  Routing routing;
  std::optional<GatheredRows> gathered = {};
  ExpertPart part;  // its output is by row

  friend bool operator==(const ExpertProductStep&, const ExpertProductStep&) = default;
};

// gate and up of the tokens' rows, and per row activation(gate's) * up's.
struct ExpertGateStep {
  Forms input;  // [token]
  NormFactor norm;
  Routing routing;
  std::optional<GatheredRows> gathered = {};  // none on a GPU, which gathers while it reads
  ExpertPart gate;
  ExpertPart up;
  Activation activation = {};
  FormsOutput output = {};  // [row]

  // True where a GPU computes both at once, with what follows.
  bool is_one_product_on_gpus() const {
    return gate.matrices.front().format == up.matrices.front().format && gate.is_plain() &&
           up.is_plain() && !routing.weighs_inputs && activation == ActivationFunction::kSilu;
  }

  friend bool operator==(const ExpertGateStep&, const ExpertGateStep&) = default;
};

// Products on their way to their tokens, on processors: [worker][kExpertRows][kExpertSumColumns].
struct WorkerProducts {
  ArenaOffset<float> rows = {};
  size_t stride = 0;  // floats
  size_t workers = 0;

  friend bool operator==(const WorkerProducts&, const WorkerProducts&) = default;
};

// Products on their way to their tokens, on a GPU: [row][column].
struct RowProducts {
  ArenaOffset<float> rows = {};
  size_t stride = 0;  // floats

  friend bool operator==(const RowProducts&, const RowProducts&) = default;
};

// Per token the sum of its experts' results, each multiplied with its weight, in the order of the
// experts: added to a residual, or by itself.
struct ExpertSumStep {
  Forms input;  // [row]
  Routing routing;
  ExpertPart down;          // its output is by token
  bool accumulate = false;  // to what the output holds
  // None: the rank has no experts.
  std::variant<std::monostate, WorkerProducts, RowProducts> products = {};
  ResidualFinish finish = {};

  friend bool operator==(const ExpertSumStep&, const ExpertSumStep&) = default;
};

std::string text_of(const ExpertProductStep& step);
std::string text_of(const ExpertGateStep& step);
std::string text_of(const ExpertSumStep& step);

// Products of few tokens are shared statically by weight, those of more by tasks; neither changes
// the bits: every row is computed by itself, and the rows of a token are added in the order of the
// experts.
void run(const ExpertProductStep& step, const Pass& pass, TaskCounter& tasks);
void run(const ExpertGateStep& step, const Pass& pass, TaskCounter& tasks);
void run(const ExpertSumStep& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
