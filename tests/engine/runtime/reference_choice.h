// Which experts a token goes to, in float64.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/graph/graph.h"

namespace lockstep {

struct ReferenceChoice {
  size_t expert = 0;
  double weight = 0;
};

// `scores` and `bias`: by expert. The first choice is the one with the largest value.
std::vector<ReferenceChoice> reference_choice(const Gating& gating,
                                              const std::vector<double>& scores,
                                              const std::vector<float>& bias, size_t count);

}  // namespace lockstep
