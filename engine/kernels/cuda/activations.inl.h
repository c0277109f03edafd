// Activations (gpu_values.h). Included after gpu_code.h.
#pragma once

#include "engine/kernels/activation_function.h"

namespace lockstep {
namespace {

// x / (1 + e^-y).
GPU_FUNCTION float times_logistic(float x, float y) {
  return x / (1.0F + exponential_of(-y));
}

// A NaN is not above 0, and passes the minimum.
GPU_FUNCTION float xielu_of(const float* parameters, float x) {
  if (x > 0) return multiply(x, multiply_add(parameters[0], x, parameters[2]));
  const float bounded = parameters[3] < x ? parameters[3] : x;
  const float rest = exponential_less_one(bounded) - x;
  return multiply_add(parameters[1], rest, multiply(parameters[2], x));
}

GPU_FUNCTION float clipped_swiglu_of(const float* parameters, float x) {
  const float bounded = parameters[1] < x ? parameters[1] : x;
  return times_logistic(bounded, multiply(parameters[0], bounded));
}

GPU_FUNCTION float activate(const Activation& activation, float x) {
  const float* parameters = &activation.parameters[0];
  switch (activation.function) {
    case ActivationFunction::kSilu:
      return times_logistic(x, x);
    case ActivationFunction::kGelu:
      return multiply(multiply(x, 0.5F), error_complement_of(multiply(x, -0.70710678F)));
    case ActivationFunction::kGeluTanh: {
      const float cubic = multiply_add(multiply(multiply(x, x), x), 0.044715F, x);
      return times_logistic(x, multiply(cubic, 1.59576912F));  // 2 root(2 / pi)
    }
    case ActivationFunction::kGeluQuick:
      return times_logistic(x, multiply(x, 1.702F));
    case ActivationFunction::kRelu:
      return x < 0 ? 0.0F : x;
    case ActivationFunction::kReluSquared:
      return x < 0 ? 0.0F : multiply(x, x);
    case ActivationFunction::kSigmoid:
      return times_logistic(1.0F, x);
    case ActivationFunction::kXielu:
      return xielu_of(parameters, x);
    case ActivationFunction::kClippedSwiglu:
      return clipped_swiglu_of(parameters, x);
  }
  return x;
}

// The factor that an activation gates. A NaN passes.
GPU_FUNCTION float gated_by(const Activation& activation, float y) {
  if (activation.function != ActivationFunction::kClippedSwiglu) return y;
  const float limit = activation.parameters[1];
  const float bounded = y > limit ? limit : y < -limit ? -limit : y;
  return bounded + 1.0F;
}

}  // namespace
}  // namespace lockstep
