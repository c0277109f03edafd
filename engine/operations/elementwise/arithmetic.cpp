// Functions of each element that take a line or two.
#include <algorithm>
#include <cmath>

#include "engine/operations/elementwise/elementwise.h"
#include "engine/operations/operation_table.h"

namespace lockstep {
namespace {

void add(const ElementwiseStep&, const ElementwiseRow& row, const KernelTable&, float* out) {
  for (size_t i = 0; i < row.count; ++i) out[i] = row.x[i] + row.y[i];
}
constexpr ElementwiseFunction kAdd = {
    .name = "add", .apply = add, .gpu_function = GpuFunction::kAdd};

// A sum that begins with the other operand has added both.
void plan_addition(RankPlanner& planner, const Group& group) {
  if (!planner.values().is_placed(group.lead)) plan_elementwise(planner, group, kAdd);
}

void scale(const ElementwiseStep& step, const ElementwiseRow& row, const KernelTable&, float* out) {
  for (size_t i = 0; i < row.count; ++i) out[i] = step.scale * row.x[i];
}
constexpr ElementwiseFunction kScale = {
    .name = "scale", .apply = scale, .gpu_function = GpuFunction::kScale};

void cap_softly(const ElementwiseStep& step, const ElementwiseRow& row, const KernelTable& kernels,
                float* out) {
  kernels.soft_cap(row.x, row.count, step.scale, out);
}
constexpr ElementwiseFunction kSoftCap = {
    .name = "soft cap", .apply = cap_softly, .gpu_function = GpuFunction::kSoftCap};

void clamp(const ElementwiseStep& step, const ElementwiseRow& row, const KernelTable&, float* out) {
  for (size_t i = 0; i < row.count; ++i) out[i] = std::clamp(row.x[i], -step.scale, step.scale);
}
constexpr ElementwiseFunction kClamp = {
    .name = "clamp", .apply = clamp, .gpu_function = GpuFunction::kClamp};

// In f64: the same for a token wherever it is computed.
void apply_temperature(const ElementwiseStep& step, const ElementwiseRow& row, const KernelTable&,
                       float* out) {
  const Temperature& temperature = step.temperature;
  const size_t periods = (row.position + temperature.offset) / temperature.tokens;
  const auto factor = static_cast<float>(1 + double{temperature.scale} *
                                                 std::log(1 + static_cast<double>(periods)));
  for (size_t i = 0; i < row.count; ++i) out[i] = factor * row.x[i];
}
constexpr ElementwiseFunction kTemperature = {
    .name = "temperature", .apply = apply_temperature, .gpu_function = GpuFunction::kTemperature};

}  // namespace

const OperationRow kAddRow = {
    .operation = Operation::kAdd, .name = "addition", .plan = plan_addition, .has_gpu_step = true};

const OperationRow kScaleRow = {.operation = Operation::kScale,
                                .name = "scale",
                                .hands_on = true,
                                .plan = plan_function<kScale>,
                                .has_gpu_step = true};

const OperationRow kSoftCapRow = {.operation = Operation::kSoftCap,
                                  .name = "soft cap",
                                  .hands_on = true,
                                  .plan = plan_function<kSoftCap>,
                                  .has_gpu_step = true};

const OperationRow kClampRow = {.operation = Operation::kClamp,
                                .name = "clamp",
                                .hands_on = true,
                                .plan = plan_function<kClamp>,
                                .has_gpu_step = true};

const OperationRow kTemperatureRow = {.operation = Operation::kTemperature,
                                      .name = "temperature",
                                      .hands_on = true,
                                      .plan = plan_function<kTemperature>,
                                      .has_gpu_step = true};

}  // namespace lockstep
