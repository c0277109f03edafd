// Activations, by themselves, of a gate and of the factors of rows.
#include "engine/operations/elementwise/elementwise.h"
#include "engine/operations/operation_table.h"

namespace lockstep {
namespace {

void activate(const ElementwiseStep& step, const ElementwiseRow& row, const KernelTable& kernels,
              float* out) {
  const Activation& activation = step.activation;
  activation_kernel(kernels, activation.function)(row.x, row.count, activation.parameters.data(),
                                                  out);
}
constexpr ElementwiseFunction kActivation = {
    .name = "activation", .apply = activate, .gpu_function = GpuFunction::kActivation};

void apply_gate(const ElementwiseStep& step, const ElementwiseRow& row, const KernelTable& kernels,
                float* out) {
  const Activation& activation = step.activation;
  gate_kernel(kernels, activation.function)(row.x, row.y, row.count, activation.parameters.data(),
                                            out);
}
constexpr ElementwiseFunction kGate = {
    .name = "gate", .apply = apply_gate, .gpu_function = GpuFunction::kGate};

void scale_rows(const ElementwiseStep& step, const ElementwiseRow& row, const KernelTable& kernels,
                float* out) {
  const Activation& activation = step.activation;
  float factor;
  activation_kernel(kernels, activation.function)(row.y, 1, activation.parameters.data(), &factor);
  for (size_t i = 0; i < row.count; ++i) out[i] = factor * row.x[i];
}
constexpr ElementwiseFunction kScaleRows = {.name = "scale rows",
                                            .apply = scale_rows,
                                            .gpu_function = GpuFunction::kScaleRows,
                                            .has_factors = true};

}  // namespace

const OperationRow kActivationRow = {.operation = Operation::kActivation,
                                     .name = "activation",
                                     .plan = plan_function<kActivation>,
                                     .has_gpu_step = true};

const OperationRow kGateRow = {.operation = Operation::kGate,
                               .name = "gate",
                               .plan = plan_function<kGate>,
                               .has_gpu_step = true};

const OperationRow kScaleRowsRow = {.operation = Operation::kScaleRows,
                                    .name = "scale of rows",
                                    .split = SplitRule::kFirstInput,
                                    .hands_on = true,
                                    .plan = plan_function<kScaleRows>,
                                    .has_gpu_step = true};

}  // namespace lockstep
