// The activations of feed-forwards and gates, as one table. Their arithmetic is KernelTable's.
#pragma once

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
};
inline constexpr size_t kActivationFunctionCount = 7;

// By ActivationFunction.
inline constexpr std::string_view kActivationNames[kActivationFunctionCount] = {
    "silu", "gelu", "gelu-tanh", "gelu-quick", "relu", "relu-squared", "sigmoid"};

}  // namespace lockstep
