// How a mixture weighs its experts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

// How a routing weighs a token's experts. Each has a value, which is a function of its score alone
// or of all scores.
enum class GatingFunction : uint8_t {
  kChosenSoftmax,  // the score; weights are the softmax of the chosen experts' scores alone
  kSoftmax,        // the softmax over all experts
  kSigmoid,        // 1 / (1 + e^-score)
  kSqrtSoftplus,   // sqrt(ln(1 + e^score))
};

// A token goes to the experts with the largest values, of equal ones to the first. Their weights
// are these values.
struct Gating {
  GatingFunction function = GatingFunction::kChosenSoftmax;
  // The chosen experts' weights are divided by their sum, or by kLeastWeightSum where that is more.
  // Those of kChosenSoftmax add up to 1 as they are.
  bool is_normalized = false;
  float scale = 1;  // in the end multiplies the weights
  // The weights multiply what experts read (their products, before biases) instead of what they
  // give.
  bool weighs_inputs = false;
  // Experts in groups of one size: a token goes only to experts of those `chosen_groups` groups in
  // which the `group_values` largest values have the largest sum. 1: they are not grouped.
  size_t group_count = 1;
  size_t chosen_groups = 1;
  size_t group_values = 2;  // 1 or 2

  friend bool operator==(const Gating&, const Gating&) = default;
};
inline constexpr double kLeastWeightSum = 0x1p-14;  // the least normal number of F16

}  // namespace lockstep
