#include "engine/graph/operations.h"

#include <iterator>

namespace lockstep {
namespace {

constexpr OperationTraits kTable[] = {
    {Operation::kEmbed, "embedding", SplitRule::kVocabulary, Cost::kTableRows, true},
    {Operation::kRmsNorm, "RMS norm", SplitRule::kFirstInput, Cost::kNothing, true},
    {Operation::kLayerNorm, "layer norm", SplitRule::kFirstInput, Cost::kNothing, false},
    {Operation::kHeadNorm, "norm of heads", SplitRule::kHeads, Cost::kNothing, false},
    {Operation::kMatmul, "product", SplitRule::kProduct, Cost::kMatrix, true},
    {Operation::kHeadMatmul, "product of heads", SplitRule::kHeads, Cost::kMatrix, false},
    {Operation::kRotary, "rotary positions", SplitRule::kHeads, Cost::kNothing, false},
    {Operation::kAttention, "attention", SplitRule::kFirstInput, Cost::kCache, true},
    {Operation::kActivation, "activation", SplitRule::kInputs, Cost::kNothing, false},
    {Operation::kGate, "gate", SplitRule::kInputs, Cost::kNothing, false},
    {Operation::kAdd, "addition", SplitRule::kInputs, Cost::kNothing, false},
    {Operation::kScale, "scale", SplitRule::kInputs, Cost::kNothing, false},
    {Operation::kSoftCap, "soft cap", SplitRule::kInputs, Cost::kNothing, false},
    {Operation::kClamp, "clamp", SplitRule::kInputs, Cost::kNothing, false},
    {Operation::kScaleRows, "scale of rows", SplitRule::kFirstInput, Cost::kNothing, false},
    {Operation::kSelectRows, "selection of rows", SplitRule::kFirstInput, Cost::kNothing, false},
    {Operation::kSliceHeads, "slice of heads", SplitRule::kHeads, Cost::kNothing, false},
    {Operation::kJoinHeads, "join of heads", SplitRule::kHeads, Cost::kNothing, false},
    {Operation::kTemperature, "temperature", SplitRule::kInputs, Cost::kNothing, false},
    {Operation::kRoute, "routing", SplitRule::kMirrored, Cost::kNothing, true},
    {Operation::kExpertMatmul, "experts' product", SplitRule::kProduct, Cost::kExperts, false},
    {Operation::kExpertSum, "experts' sum", SplitRule::kProduct, Cost::kExperts, true},
};
static_assert(std::size(kTable) == kOperationCount);

}  // namespace

std::span<const OperationTraits> operation_table() {
  return kTable;
}

}  // namespace lockstep
