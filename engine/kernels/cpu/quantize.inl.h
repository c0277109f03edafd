// Activations to the form kQ8; see activation.h. Written over the small vector type.
#pragma once

#include <cfloat>
#include <cstddef>
#include <cstdint>

#include "engine/kernels/activation.h"

namespace lockstep {
namespace {

inline void quantize(const float* values, size_t columns, size_t begin, size_t count,
                     std::byte* row) {
  const Q8Row layout = q8_row(columns);
  const F32x16 least = broadcast(-127.0F);
  const F32x16 greatest = broadcast(127.0F);
  for (size_t column = begin; column < begin + count; column += kQ8BlockElements) {
    const F32x16 first = load(values + (column - begin));
    const F32x16 second = load(values + (column - begin) + 16);
    const float largest = max_lanes(max(abs(first), abs(second)));
    // Below the normal numbers x / scale could leave [-127, 127]; zero is near enough there.
    const bool representable = !(largest / 127.0F < FLT_MIN);
    const float scale = representable ? largest / 127.0F : 0.0F;
    const F32x16 divisor = broadcast(scale);
    // The order of the arguments makes a NaN -127, so that no conversion to integers sees it.
    const auto quants = [&](F32x16 x) {
      return representable ? min(max(round(div(x, divisor)), least), greatest) : zero();
    };
    const F32x16 first_quants = quants(first);
    const F32x16 second_quants = quants(second);
    store_int8(row + column, first_quants);
    store_int8(row + column + 16, second_quants);
    // Sums of integers this small are exact as floats.
    const auto first_sum = static_cast<int32_t>(sum_lanes(first_quants));
    const int32_t negated_first_sum = -first_sum;
    const int32_t negated_sum = negated_first_sum - static_cast<int32_t>(sum_lanes(second_quants));
    const size_t offset = column / kQ8BlockElements * sizeof(float);
    __builtin_memcpy(row + layout.scales + offset, &scale, sizeof scale);
    __builtin_memcpy(row + layout.sums + offset, &negated_sum, sizeof negated_sum);
    __builtin_memcpy(row + layout.first_sums + offset, &negated_first_sum,
                     sizeof negated_first_sum);
    const float scaled_sum = scale * static_cast<float>(negated_sum);
    __builtin_memcpy(row + layout.scaled_sums + offset, &scaled_sum, sizeof scaled_sum);
  }
}

}  // namespace
}  // namespace lockstep
