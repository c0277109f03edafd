// The activations of feed-forwards and gates, as one table. Their arithmetic is KernelTable's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

enum class ActivationFunction : uint8_t {
  kSilu,         // x / (1 + e^-x)
  kGelu,         // x * the normal distribution's share below x
  kGeluTanh,     // x / (1 + e^(-2 sqrt(2 / pi) (x + 0.044715 x^3)))
  kGeluQuick,    // x / (1 + e^(-1.702 x))
  kRelu,         // the larger of x and 0
  kReluSquared,  // its square
  kSigmoid,      // 1 / (1 + e^-x)
  // a, b, c, d: x (a x + c) of positive x, and of others b (e^min(x, d) - 1 - x) + c x.
  kXielu,
  // a, b: z / (1 + e^(-a z)), where z is x or the limit b, whichever is less. What it gates is 1 +
  // y, y being kept between -b and b.
  kClippedSwiglu,
};
inline constexpr size_t kActivationFunctionCount = 9;

// By ActivationFunction.
inline constexpr std::string_view kActivationNames[kActivationFunctionCount] = {
    "silu",         "gelu",    "gelu-tanh", "gelu-quick",    "relu",
    "relu-squared", "sigmoid", "xielu",     "clipped-swiglu"};

// A function, and the numbers that it leaves open, in the order of the alphabet above; 0 those that
// it has not.
struct Activation {
  ActivationFunction function = ActivationFunction::kSilu;
  std::array<float, 4> parameters = {};

  Activation() = default;
  Activation(ActivationFunction plain) : function(plain) {}  // NOLINT(google-explicit-constructor)
  Activation(ActivationFunction open, const std::array<float, 4>& numbers)
      : function(open), parameters(numbers) {}

  friend bool operator==(const Activation&, const Activation&) = default;
};

}  // namespace lockstep
