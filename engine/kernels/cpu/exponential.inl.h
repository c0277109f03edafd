// An exponential of ours, so that every row of the kernel table gives the same bits. Written over
// the small vector type.
#pragma once

namespace lockstep {
namespace {

// q(r), where e^r is 1 + r + r^2 q(r), for |r| <= ln 2 / 2: a polynomial that has the least
// greatest relative error (Remez), 1.4e-8, among those whose first coefficient is the float 0.5.
inline F32x16 exponential_rest(F32x16 r) {
  F32x16 result = fma(broadcast(0x1.6f7cdep-10F), r, broadcast(0x1.122482p-7F));
  result = fma(result, r, broadcast(0x1.55533cp-5F));
  result = fma(result, r, broadcast(0x1.5554b2p-3F));
  return fma(result, r, broadcast(0.5F));
}

// e^x as below for x up to 88.375, or NaN.
//
// x = n ln 2 + r with |r| <= ln 2 / 2 (W. J. Cody, W. Waite, Software Manual for the Elementary
// Functions, 1980: ln 2 as a sum of two floats), then 2^n times a polynomial.
inline F32x16 bounded_exponential(F32x16 x) {
  const F32x16 least = broadcast(-87.3365402F);
  // The order of the arguments lets a NaN through here, to r and the result, ...
  const F32x16 bounded = max(least, x);
  // ... and stops it there: the power must be a number.
  const F32x16 n = max(round(mul(bounded, broadcast(0x1.715476p+0F))), broadcast(-126.0F));
  const F32x16 r = fma(n, broadcast(0x1.05c610p-29F), fma(n, broadcast(-0x1.62e430p-1F), bounded));
  F32x16 result = fma(exponential_rest(r), r, broadcast(1.0F));
  result = fma(result, r, broadcast(1.0F));
  result = scale_by_power(result, n);
  return select_less(x, least, zero(), result);
}

// e^x, within 2 units in the last place for x in [-87.3365, 88.375]; e^0 is exactly 1. Below that
// range it is 0 (the result would not be a normal number), above it infinity. NaN stays NaN.
inline F32x16 exponential(F32x16 x) {
  const F32x16 greatest = broadcast(88.375F);
  // A NaN passes, as above.
  const F32x16 result = bounded_exponential(min(greatest, x));
  return select_less(greatest, x, broadcast(__builtin_inff()), result);
}

// log(1 + e^x), within 4 units in the last place where that is a normal number; NaN stays NaN.
//
// It is max(x, 0) + log(1 + u) with u = e^-|x|, and log(1 + u) is u times a polynomial that has the
// least greatest relative error (Remez) for u in [0, 1], 4.7e-9.
inline F32x16 softplus(F32x16 x) {
  const F32x16 u = exponential(min(sub(zero(), x), x));
  F32x16 result = fma(broadcast(-0x1.a93368p-9F), u, broadcast(0x1.453f0ep-6F));
  result = fma(result, u, broadcast(-0x1.d29ccap-5F));
  result = fma(result, u, broadcast(0x1.b25360p-4F));
  result = fma(result, u, broadcast(-0x1.397562p-3F));
  result = fma(result, u, broadcast(0x1.92f696p-3F));
  result = fma(result, u, broadcast(-0x1.ff0f88p-3F));
  result = fma(result, u, broadcast(0x1.554c80p-2F));
  result = fma(result, u, broadcast(-0x1.ffffbep-2F));
  result = fma(result, u, broadcast(1.0F));
  return fma(result, u, max(zero(), x));
}

}  // namespace
}  // namespace lockstep
