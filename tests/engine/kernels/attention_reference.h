// Attention in float64, with a bound on how far the kernels' results may be from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/group_traits.h"
#include "tests/engine/kernels/paged_sequence.h"

namespace lockstep {

// The result of one query, and how far each element of a result may be from it.
struct AttentionReference {
  std::vector<double> output;
  std::vector<double> bound;
};

// Over the keys and values as they are stored, of the token at `position`.
AttentionReference attention_reference(const PagedSequence& sequence, const float* query,
                                       const QueryTraits& traits, size_t position);

// The same with a window (0: none), and nothing else.
AttentionReference attention_reference(const PagedSequence& sequence, const float* query,
                                       double scale, size_t position, size_t window);

std::vector<uint32_t> bits_of(const std::vector<float>& values);

// "avx2 f16, head dimension 64, context 100": for messages.
std::string describe(const KernelTable& table, const PagedSequence& sequence);

}  // namespace lockstep
