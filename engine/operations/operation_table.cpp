#include "engine/operations/operation_table.h"

#include <algorithm>
#include <iterator>

#include "engine/kernels/gpu_product.h"

namespace lockstep {
namespace {

constexpr const OperationRow* kTable[] = {
    &kEmbedRow,        &kGivenRowsRow,   &kRmsNormRow,  &kLayerNormRow,  &kHeadNormRow,
    &kMatmulRow,       &kHeadMatmulRow,  &kRotaryRow,   &kAttentionRow,  &kActivationRow,
    &kGateRow,         &kAddRow,         &kScaleRow,    &kSoftCapRow,    &kClampRow,
    &kScaleRowsRow,    &kSelectRowsRow,  &kMeanRowsRow, &kSliceHeadsRow, &kJoinHeadsRow,
    &kTemperatureRow,  &kConvolutionRow, &kDeltaNetRow, &kScanRow,       &kRouteRow,
    &kExpertMatmulRow, &kExpertSumRow,
};
static_assert(std::size(kTable) == kOperationCount);

}  // namespace

std::span<const OperationRow* const> operation_table() {
  return kTable;
}

StateShape value_head_state(const GraphNode& node, size_t own_columns) {
  return {.rows = own_columns / node.value_dimension * node.head_dimension,
          .columns = node.value_dimension};
}

std::optional<std::string_view> sum_gap(const GroupParts& parts) {
  if (nodes_of(parts.graph, parts.group, Operation::kRmsNorm).size() > kGpuProductNorms) {
    return "step of so many norms";
  }
  return std::nullopt;
}

}  // namespace lockstep
