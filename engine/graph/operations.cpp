#include "engine/graph/operations.h"

#include <iterator>

namespace lockstep {
namespace {

constexpr OperationTraits kTable[] = {
    {Operation::kEmbed, "embedding", SplitRule::kVocabulary, true},
    {Operation::kRmsNorm, "RMS norm", SplitRule::kFirstInput, true},
    {Operation::kLayerNorm, "layer norm", SplitRule::kFirstInput, false},
    {Operation::kHeadNorm, "norm of heads", SplitRule::kFirstInput, false},
    {Operation::kMatmul, "product", SplitRule::kProduct, true},
    {Operation::kRotary, "rotary positions", SplitRule::kFirstInput, false},
    {Operation::kAttention, "attention", SplitRule::kFirstInput, true},
    {Operation::kActivation, "activation", SplitRule::kInputs, false},
    {Operation::kGate, "gate", SplitRule::kInputs, false},
    {Operation::kAdd, "addition", SplitRule::kInputs, false},
    {Operation::kScale, "scale", SplitRule::kInputs, false},
    {Operation::kSoftCap, "soft cap", SplitRule::kInputs, false},
    {Operation::kScaleRows, "scale of rows", SplitRule::kFirstInput, false},
    {Operation::kSelectRows, "selection of rows", SplitRule::kFirstInput, false},
    {Operation::kTemperature, "temperature", SplitRule::kInputs, false},
    {Operation::kRoute, "routing", SplitRule::kMirrored, true},
    {Operation::kExpertMatmul, "experts' product", SplitRule::kProduct, false},
    {Operation::kExpertSum, "experts' sum", SplitRule::kProduct, true},
};
static_assert(std::size(kTable) == kOperationCount);

}  // namespace

std::span<const OperationTraits> operation_table() {
  return kTable;
}

}  // namespace lockstep
