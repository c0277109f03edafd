// The activations of feed-forwards and what caps logits; see kernel_table.h. Written over the small
// vector type, with the exponential of ours alone, so that every row gives the same bits.
#pragma once

#include <cstddef>

#include "engine/kernels/cpu/exponential.inl.h"

namespace lockstep {
namespace {

// x / (1 + e^-y).
inline F32x16 times_logistic(F32x16 x, F32x16 y) {
  return div(x, add(broadcast(1.0F), exponential(sub(zero(), y))));
}

struct Silu {
  static F32x16 of(F32x16 x) { return times_logistic(x, x); }
};

// The normal distribution's share below -u, u >= 0: e^(-u^2 / 2) / 2 times the scaled complement of
// the error function of u / sqrt(2). That is t times a polynomial of t = 1 / (1 + 0.3125 u), whose
// greatest relative error up to u = 13.3 is the least there is (Remez), 9.3e-9. The square's
// rounding is made good, since the exponential would multiply it.
inline F32x16 normal_share_below_minus(F32x16 u) {
  const F32x16 t = div(broadcast(1.0F), fma(u, broadcast(0.3125F), broadcast(1.0F)));
  F32x16 scaled = fma(broadcast(-0x1.2ec3dap-6F), t, broadcast(0x1.6a44dcp-4F));
  scaled = fma(scaled, t, broadcast(-0x1.26eafep-3F));
  scaled = fma(scaled, t, broadcast(0x1.094958p-4F));
  scaled = fma(scaled, t, broadcast(0x1.644d1cp-8F));
  scaled = fma(scaled, t, broadcast(0x1.a3b6f2p-5F));
  scaled = fma(scaled, t, broadcast(0x1.772070p-4F));
  scaled = fma(scaled, t, broadcast(0x1.c8f672p-4F));
  scaled = fma(scaled, t, broadcast(0x1.ff2286p-4F));
  scaled = fma(scaled, t, broadcast(0x1.fe9f0cp-4F));
  scaled = mul(scaled, t);
  const F32x16 square = mul(u, u);
  const F32x16 rest = fma(u, u, sub(zero(), square));
  const F32x16 power = exponential(mul(square, broadcast(-0.5F)));
  return mul(scaled, fma(mul(rest, broadcast(-0.5F)), power, power));
}

struct Gelu {
  // Beyond 14 the share is 0 or 1, and the square of a large number would be infinite.
  static F32x16 of(F32x16 x) {
    const F32x16 u = min(broadcast(14.0F), max(sub(zero(), x), x));
    const F32x16 below = normal_share_below_minus(u);
    const F32x16 share = select_less(x, zero(), below, sub(broadcast(1.0F), below));
    return mul(x, share);
  }
};

struct GeluTanh {
  static F32x16 of(F32x16 x) {
    const F32x16 cubic = fma(mul(mul(x, x), x), broadcast(0.044715F), x);
    return times_logistic(x, mul(cubic, broadcast(1.59576912F)));  // 2 sqrt(2 / pi)
  }
};

struct GeluQuick {
  static F32x16 of(F32x16 x) { return times_logistic(x, mul(x, broadcast(1.702F))); }
};

// A NaN is not less than 0, and stays.
struct Relu {
  static F32x16 of(F32x16 x) { return select_less(x, zero(), zero(), x); }
};

struct ReluSquared {
  static F32x16 of(F32x16 x) {
    const F32x16 relu = Relu::of(x);
    return mul(relu, relu);
  }
};

struct Sigmoid {
  static F32x16 of(F32x16 x) { return times_logistic(broadcast(1.0F), x); }
};

class Xielu {
 public:
  explicit Xielu(const float* parameters)
      : square_(broadcast(parameters[0])),
        power_(broadcast(parameters[1])),
        linear_(broadcast(parameters[2])),
        greatest_(broadcast(parameters[3])) {}

  // Near 0 the polynomial alone has what 1 + x is off by. A NaN is not above 0, and passes the min.
  F32x16 of(F32x16 x) const {
    const F32x16 bounded = min(greatest_, x);
    const F32x16 near = fma(mul(bounded, bounded), exponential_rest(bounded), sub(bounded, x));
    const F32x16 far = sub(sub(exponential(bounded), broadcast(1.0F)), x);
    const F32x16 rest = select_less(broadcast(-0.3125F), bounded, near, far);
    const F32x16 others = fma(power_, rest, mul(linear_, x));
    return select_less(zero(), x, mul(x, fma(square_, x, linear_)), others);
  }

 private:
  F32x16 square_;
  F32x16 power_;
  F32x16 linear_;
  F32x16 greatest_;
};

// The order of the arguments lets NaNs pass.
class ClippedSwiglu {
 public:
  explicit ClippedSwiglu(const float* parameters)
      : slope_(broadcast(parameters[0])), limit_(broadcast(parameters[1])) {}

  F32x16 of(F32x16 x) const {
    const F32x16 bounded = min(limit_, x);
    return times_logistic(bounded, mul(slope_, bounded));
  }
  F32x16 gated(F32x16 y) const {
    return add(max(sub(zero(), limit_), min(limit_, y)), broadcast(1.0F));
  }

 private:
  F32x16 slope_;
  F32x16 limit_;
};

template <typename Function>
[[gnu::always_inline]] inline Function with_parameters(const float* parameters) {
  if constexpr (requires { Function(parameters); }) {
    return Function(parameters);
  } else {
    return {};
  }
}

// out[i] = compute(read), where read(p) gives the elements i to i + 15 of p, or those that are
// left.
template <typename Compute>
[[gnu::always_inline]] inline void each_vector(size_t count, float* out, Compute compute) {
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    store(out + i, compute([&](const float* p) { return load(p + i); }));
  }
  if (i == count) return;
  const size_t rest = count - i;
  store_first(out + i, compute([&](const float* p) { return load_first(p + i, rest); }), rest);
}

template <typename Function>
void activate(const float* x, size_t count, const float* parameters, float* out) {
  const auto function = with_parameters<Function>(parameters);
  each_vector(count, out, [&](auto read) { return function.of(read(x)); });
}

template <typename Function>
void gate(const float* x, const float* y, size_t count, const float* parameters, float* out) {
  const auto function = with_parameters<Function>(parameters);
  each_vector(count, out, [&](auto read) {
    if constexpr (requires { function.gated(read(y)); }) {
      return mul(function.of(read(x)), function.gated(read(y)));
    } else {
      return mul(function.of(read(x)), read(y));
    }
  });
}

// Near 0 an odd polynomial (Remez; its greatest relative error up to 0.625 is 4.4e-9), else
// 1 - 2 / (e^2z + 1).
inline F32x16 hyperbolic_tangent(F32x16 x) {
  const F32x16 size = max(sub(zero(), x), x);
  const F32x16 square = mul(x, x);
  F32x16 series = fma(broadcast(-0x1.75e17ap-8F), square, broadcast(0x1.522686p-6F));
  series = fma(series, square, broadcast(-0x1.b83c56p-5F));
  series = fma(series, square, broadcast(0x1.110726p-3F));
  series = fma(series, square, broadcast(-0x1.555532p-2F));
  const F32x16 near = fma(mul(series, square), x, x);
  const F32x16 power = exponential(add(size, size));
  const F32x16 far = sub(broadcast(1.0F), div(broadcast(2.0F), add(power, broadcast(1.0F))));
  const F32x16 signed_far = select_less(x, zero(), sub(zero(), far), far);
  return select_less(size, broadcast(0.625F), near, signed_far);
}

inline void soft_cap(const float* x, size_t count, float cap, float* out) {
  each_vector(count, out, [&](auto read) {
    return mul(hyperbolic_tangent(div(read(x), broadcast(cap))), broadcast(cap));
  });
}

}  // namespace
}  // namespace lockstep
