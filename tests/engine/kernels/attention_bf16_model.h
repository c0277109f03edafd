// Attention in bf16 by its definition in attention.h, in plain C++: nothing here depends on how a
// processor fuses, or on its mode for small numbers.
#pragma once

#include <cstddef>
#include <vector>

#include "tests/engine/kernels/group_traits.h"
#include "tests/engine/kernels/paged_sequence.h"

namespace lockstep {

// One query's result over the keys and values as they are stored, of the token at `position`.
std::vector<float> model_attention(const PagedSequence& sequence, const float* query,
                                   const QueryTraits& traits, size_t position);

}  // namespace lockstep
