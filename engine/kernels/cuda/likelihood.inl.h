// The order of logits and of scores. Included after gpu_code.h.
#pragma once

namespace lockstep {
namespace {

// A logit as a number that is greater the likelier it is, and never 0, which is no entry's. One
// that is no number counts as the least there is.
GPU_FUNCTION uint32_t likelihood_key(float logit) {
  constexpr uint32_t kSign = 0x80000000U;
  constexpr uint32_t kInfinity = 0x7F800000U;
  uint32_t bits = float_to_bits(logit);
  if ((bits & ~kSign) > kInfinity) bits = kSign | kInfinity;
  if (bits == kSign) bits = 0;
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

}  // namespace
}  // namespace lockstep
