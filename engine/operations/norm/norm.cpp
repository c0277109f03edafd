#include "engine/operations/norm/norm.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/base/checked_math.h"
#include "engine/graph/fusion/groups.h"
#include "engine/operations/operation_table.h"
#include "engine/operations/rank_planner.h"

namespace lockstep {
namespace {

// Notes it of the norm that is multiplied to logits. Rank 0 hands out what every rank has in full.
void note_hidden_rows(RankPlanner& planner, const GraphNode& norm) {
  const auto kept = hidden_residual(planner.graph());
  if (!kept || planner.graph().nodes()[*logits_product(planner.graph())].inputs[0] != norm.output) {
    return;
  }
  const ValueId residual = *kept;
  const Buffer& buffer = planner.values().of(residual);
  const bool is_sliced = planner.split().values[residual].kind == SplitKind::kSliced;
  const Range own = planner.own_columns(residual);
  planner.plan().hidden = {.residual = buffer.plain->at<float>(own.begin - buffer.held.begin),
                           .residual_stride = buffer.plain->floats(),
                           .columns = is_sliced || planner.rank() == 0 ? own : Range{},
                           .norm_weight = planner.vector(norm.weight) + own.begin,
                           .width = planner.graph().columns(residual),
                           .epsilon = norm.epsilon};
}

// The sums of the chunks cross ranks where each has computed its own, and are added in order.
void plan_whole_norm(RankPlanner& planner, const GraphNode& node) {
  const ValueId input = node.inputs[0];
  const Range own = planner.own_columns(node.output);
  const size_t columns = planner.graph().columns(input);
  const bool has_own = planner.split().values[input].kind == SplitKind::kSliced &&
                       !planner.split().values[input].whole;
  const auto is_part = [&](const Range& range) {
    return !range.empty() && range != Range{0, columns};
  };
  const bool is_gathered =
      has_own && std::ranges::any_of(planner.split().values[input].columns, is_part);
  const Range summed = has_own ? own : Range{0, columns};
  const auto place_sums = [&] {
    const Stretch rows = planner.step_areas().take_f32(
        is_gathered ? Arena::kExchange : Arena::kScratch, divide_up(columns, kChunkColumns),
        planner.values().row_count(input));
    return ChunkSums{rows.at<float>(), rows.floats()};
  };
  const ChunkSums squares = place_sums();
  const ChunkSums sums = node.operation == Operation::kLayerNorm ? place_sums() : ChunkSums();
  const size_t first_chunk = summed.begin / kChunkColumns;
  planner.emit(NormSumsStep{.rows = planner.graph().rows(input),
                            .input = planner.operand(input, summed),
                            .columns = summed.size(),
                            .chunks = {squares.sums + first_chunk, squares.stride},
                            .sums = {sums.sums + first_chunk, sums.stride},
                            .gather = is_gathered},
               is_gathered ? Meet::kAllRanks : Meet::kRank);
  NormScaleStep step{.rows = planner.graph().rows(input),
                     .input = planner.operand(input, own),
                     .columns = own.size(),
                     .weight = planner.vector(node.weight) + own.begin,
                     .bias = planner.vector(node.bias) + own.begin,
                     .norm = {squares, columns, node.epsilon},
                     .sums = sums,
                     .output = planner.place_output(node.output)};
  note_hidden_rows(planner, node);
  planner.values().consume(input);
  const Meet meet = planner.meet_behind(node.output, step.output);
  planner.emit(std::move(step), meet);
  planner.step_areas().release();
}

void plan_norm(RankPlanner& planner, const Group& group) {
  const GraphNode& node = planner.graph().nodes()[group.lead];
  if (!is_norm_factored(planner.graph(), planner.values().readers(node.output), group.lead)) {
    return plan_whole_norm(planner, node);
  }
  const auto selection = node_of(planner.graph(), group, Operation::kSelectRows);
  if (selection) planner.values().share(*selection, planner.graph().nodes()[*selection].inputs[0]);
  const ValueId residual = node.inputs[0];
  const Range own = planner.own_columns(residual);
  const PlainRows rows = planner.operand(residual, own);
  NormStep step{.residual = rows.rows,
                .residual_stride = rows.stride,
                .columns = own.size(),
                .residual_rows = selection ? Rows::kTokens : planner.graph().rows(residual),
                .norm = place_norm(planner, node)};
  const Meet meet = step.norm.output.gather ? Meet::kAllRanks : Meet::kRank;
  planner.emit(std::move(step), meet);
}

void plan_layer_norm(RankPlanner& planner, const Group& group) {
  plan_whole_norm(planner, planner.graph().nodes()[group.lead]);
}

// Whether ranks have parts of what a norm that is no factor reads.
bool is_cut_norm(const GroupParts& parts, const GraphNode& node) {
  if (is_norm_factored(parts.graph, parts.readers[node.output], node.output)) return false;
  const ValueSplit& input = parts.split.values[node.inputs[0]];
  const Range all = {0, parts.graph.columns(node.inputs[0])};
  const auto is_part = [&](const Range& own) { return !own.empty() && own != all; };
  return input.kind == SplitKind::kSliced && std::ranges::any_of(input.columns, is_part);
}

// GPUs hand one another the sums of tokens' squares alone.
std::optional<std::string_view> rms_norm_gap(const GroupParts& parts, const GraphNode& node) {
  if (!is_cut_norm(parts, node) || parts.graph.rows(node.output) == Rows::kTokens) {
    return std::nullopt;
  }
  return "norm of rows of logits of which other GPUs compute columns";
}

std::optional<std::string_view> layer_norm_gap(const GroupParts& parts, const GraphNode& node) {
  if (!is_cut_norm(parts, node)) return std::nullopt;
  return "layer norm of columns that other GPUs compute";
}

}  // namespace

NormOutput place_norm(RankPlanner& planner, const GraphNode& node) {
  const ValueId residual = node.inputs[0];
  const Range own = planner.own_columns(residual);
  NormOutput norm;
  norm.rows = planner.graph().rows(residual);
  norm.weight = planner.vector(node.weight) + own.begin;
  norm.output = planner.values().place_forms(node.output, own);
  norm.chunks = planner.values().place_chunk_sums(node.output, planner.graph().columns(residual),
                                                  node.epsilon);
  norm.chunks.sums = norm.chunks.sums + own.begin / kChunkColumns;
  note_hidden_rows(planner, node);
  planner.values().consume(residual);
  return norm;
}

const OperationRow kRmsNormRow = {.operation = Operation::kRmsNorm,
                                  .name = "RMS norm",
                                  .split = SplitRule::kFirstInput,
                                  .hands_on = true,
                                  .plan = plan_norm,
                                  .has_gpu_step = true,
                                  .gpu_gap = rms_norm_gap};

const OperationRow kLayerNormRow = {.operation = Operation::kLayerNorm,
                                    .name = "layer norm",
                                    .split = SplitRule::kFirstInput,
                                    .hands_on = true,
                                    .plan = plan_layer_norm,
                                    .has_gpu_step = true,
                                    .gpu_gap = layer_norm_gap};

}  // namespace lockstep
