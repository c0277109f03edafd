// Pairs of columns in bf16 for instruction sets without an instruction that multiplies them: as two
// columns of floats. Written over the small vector types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/kernels/packed_matrix.h"
#include "engine/tensor/format.h"

namespace lockstep {
namespace {

struct WeightPair {
  F32x16 first;
  F32x16 second;
};
struct InputPair {
  F32x16 first;
  F32x16 second;
};

inline WeightPair load_weight_pair(const uint16_t* p) {
  return {load_bf16(p), load_bf16(p + kPanelRows)};
}
// The pair of a last column without a second.
inline WeightPair load_last_weights(const uint16_t* p) {
  return {load_bf16(p), zero()};
}
inline InputPair broadcast_pair(const std::byte* p) {
  uint32_t pair = 0;
  std::memcpy(&pair, p, sizeof pair);
  return {broadcast(bf16_to_float(static_cast<uint16_t>(pair))),
          broadcast(bf16_to_float(static_cast<uint16_t>(pair >> 16U)))};
}
inline F32x16 dot(const WeightPair& weights, const InputPair& inputs, F32x16 sum) {
  return fma(weights.first, inputs.first, fma(weights.second, inputs.second, sum));
}

}  // namespace
}  // namespace lockstep
