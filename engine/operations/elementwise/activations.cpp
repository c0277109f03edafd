// Activations, by themselves, of a gate and of the factors of rows.
#include <optional>
#include <string_view>

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
constexpr ElementwiseFunction kActivation = {.name = "activation", .apply = activate};

std::optional<std::string_view> activation_gap(const GroupParts&, const GraphNode&) {
  return kActivation.name;
}

void apply_gate(const ElementwiseStep& step, const ElementwiseRow& row, const KernelTable& kernels,
                float* out) {
  const Activation& activation = step.activation;
  gate_kernel(kernels, activation.function)(row.x, row.y, row.count, activation.parameters.data(),
                                            out);
}
constexpr ElementwiseFunction kGate = {.name = "gate", .apply = apply_gate};

std::optional<std::string_view> gate_gap(const GroupParts&, const GraphNode& node) {
  if (node.activation == ActivationFunction::kSilu) return std::nullopt;
  return kActivationNames[static_cast<size_t>(node.activation.function)];
}

void scale_rows(const ElementwiseStep& step, const ElementwiseRow& row, const KernelTable& kernels,
                float* out) {
  const Activation& activation = step.activation;
  float factor;
  activation_kernel(kernels, activation.function)(row.y, 1, activation.parameters.data(), &factor);
  for (size_t i = 0; i < row.count; ++i) out[i] = factor * row.x[i];
}
constexpr ElementwiseFunction kScaleRows = {
    .name = "scale rows", .apply = scale_rows, .has_factors = true};

}  // namespace

const OperationRow kActivationRow = {.operation = Operation::kActivation,
                                     .name = "activation",
                                     .plan = plan_function<kActivation>,
                                     .gpu_gap = activation_gap};

const OperationRow kGateRow = {.operation = Operation::kGate,
                               .name = "gate",
                               .plan = plan_function<kGate>,
                               .gpu_gap = gate_gap};

const OperationRow kScaleRowsRow = {.operation = Operation::kScaleRows,
                                    .name = "scale of rows",
                                    .split = SplitRule::kFirstInput,
                                    .hands_on = true,
                                    .plan = plan_function<kScaleRows>};

}  // namespace lockstep
