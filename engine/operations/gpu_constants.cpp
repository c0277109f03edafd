#include "engine/operations/gpu_constants.h"

#include <variant>

namespace lockstep {

std::vector<float> gpu_constants(const StepWork& step) {
  if (const auto* own = std::get_if<AttendStep>(&step)) return own->slopes;
  std::vector<float> scales;
  const auto add = [&scales](const ExpertPart& part) {
    if (!part.is_scaled()) return;
    for (const PlannedMatrix& matrix : part.matrices) scales.push_back(matrix.scale);
  };
  if (const auto* own = std::get_if<ExpertGateStep>(&step)) {
    add(own->gate);
    add(own->up);
  }
  if (const auto* own = std::get_if<ExpertProductStep>(&step)) add(own->part);
  if (const auto* own = std::get_if<ExpertSumStep>(&step)) add(own->down);
  return scales;
}

std::vector<float> gpu_constants(const Plan& plan) {
  std::vector<float> all;
  for (const Step& step : plan.steps) {
    const std::vector<float> own = gpu_constants(step.work);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

}  // namespace lockstep
