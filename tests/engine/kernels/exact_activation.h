// The activations in float64, by their definitions.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "engine/kernels/activation_function.h"

namespace lockstep {

inline double logistic(double x) {
  return 1 / (1 + std::exp(-x));
}

inline std::array<double, 4> exact_parameters(const Activation& activation) {
  std::array<double, 4> exact;
  std::ranges::copy(activation.parameters, exact.begin());
  return exact;
}

inline double exact_activation(const Activation& activation, double x) {
  const auto [a, b, c, d] = exact_parameters(activation);
  switch (activation.function) {
    case ActivationFunction::kSilu:
      return x * logistic(x);
    case ActivationFunction::kGelu:
      return x * std::erfc(-x / std::numbers::sqrt2) / 2;
    case ActivationFunction::kGeluTanh:
      return x * logistic(2 * std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x));
    case ActivationFunction::kGeluQuick:
      return x * logistic(1.702 * x);
    case ActivationFunction::kRelu:
      return std::max(x, 0.0);
    case ActivationFunction::kReluSquared:
      return std::max(x, 0.0) * std::max(x, 0.0);
    case ActivationFunction::kSigmoid:
      return logistic(x);
    case ActivationFunction::kXielu:
      return x > 0 ? a * x * x + c * x : b * (std::expm1(std::min(x, d)) - x) + c * x;
    case ActivationFunction::kClippedSwiglu:
      return std::min(x, b) * logistic(a * std::min(x, b));
  }
  return 0;
}

}  // namespace lockstep
