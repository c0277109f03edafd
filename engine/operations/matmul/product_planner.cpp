#include "engine/operations/matmul/product_planner.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/operations/norm/norm.h"

namespace lockstep {

// The norms that read a residual which a product has just added to: of all rows, or of those whose
// logits are asked for.
ResidualFinish ProductPlanner::fuse_norms(const Group& group) {
  ResidualFinish finish;
  for (const size_t index : group.nodes) {
    const GraphNode& node = planner_.graph().nodes()[index];
    if (node.operation == Operation::kRmsNorm) finish.norms.push_back(place_norm(planner_, node));
    if (node.operation == Operation::kSelectRows) {
      planner_.values().share(node.output, node.inputs[0]);
    }
  }
  return finish;
}

// Taken for the sum alone: the barrier of all ranks after it frees them.
void ProductPlanner::place_bf16_sums(ValueId value, AllReduceStep& sum) {
  for (ArenaOffset<uint16_t>* area : {&sum.bf16_partial, &sum.bf16_sum}) {
    *area =
        planner_.step_areas()
            .take_f32(Arena::kExchange, (sum.columns + 1) / 2, planner_.values().row_count(value))
            .at<uint16_t>();
  }
}

// Adds the sum over the ranks that have a part of the product's input.
void ProductPlanner::add_reduction(ValueId product, const Stretch& sums, const Stretch& partial) {
  const std::vector<Range>& parts =
      planner_.split().values[planner_.graph().producer(product).inputs[0]].columns;
  std::vector<size_t> contributors;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (!parts[rank].empty()) contributors.push_back(rank);
  }
  reductions_.push_back({.contributors = std::move(contributors),
                         .rows = planner_.graph().rows(product),
                         .partial = partial.at<float>(),
                         .partial_stride = partial.floats(),
                         .output = sums.at<float>(),
                         .output_stride = sums.floats(),
                         .columns = planner_.graph().columns(product)});
  if (planner_.options().bf16_sums) place_bf16_sums(product, reductions_.back());
}

// The product and the addition that is its only use: into the other operand's rows.
ResidualPlace ProductPlanner::add_to_residual(const Group& group, const GraphNode& node,
                                              const GraphNode& sum) {
  const ValueId residual = sum.inputs[0] == node.output ? sum.inputs[1] : sum.inputs[0];
  CHECK(planner_.values().is_placed(residual) && planner_.values().of(residual).references == 1,
        "the residual of value {} is still in use", node.output);
  if (becomes_one_ranks(residual, sum.output)) {
    move_residual(residual, sum.output);
  } else {
    planner_.values().share(sum.output, residual);
  }
  finished_.push_back(sum.output);
  const Buffer& buffer = planner_.values().of(sum.output);
  const Stretch sums = *buffer.plain;
  if (planner_.split().values[node.output].kind == SplitKind::kPartial) {
    meet_ = Meet::kAllRanks;
    const Stretch partial = planner_.values().place_plain(
        node.output, Arena::kExchange, {0, planner_.graph().columns(node.output)});
    partial_values_.push_back(node.output);
    add_reduction(node.output, sums, partial);
    return {partial.at<float>(), partial.floats(), false, std::nullopt};
  }
  const ArenaOffset<float> rows =
      sums.at<float>(planner_.own_columns(node.output).begin - buffer.held.begin);
  ResidualFinish finish = fuse_norms(group);
  const auto is_pushed = [](const NormOutput& norm) { return norm.output.gather; };
  if (std::ranges::any_of(finish.norms, is_pushed)) meet_ = Meet::kAllRanks;
  if (planner_.own_columns(sum.output).empty()) finish.norms.clear();
  return {rows, sums.floats(), true, std::move(finish)};
}

// Every rank had the residual, and from this sum on one alone has it.
bool ProductPlanner::becomes_one_ranks(ValueId residual, ValueId sum) const {
  return planner_.split().strategy == Strategy::kReduce &&
         planner_.split().values[residual].kind == SplitKind::kMirrored &&
         planner_.split().values[sum].kind == SplitKind::kSliced;
}

// Out of the exchange arena, which a GPU among processors has in the host's memory.
void ProductPlanner::move_residual(ValueId residual, ValueId sum) {
  const Buffer from = planner_.values().of(residual);
  const Range own = planner_.own_columns(sum);
  const Stretch to = planner_.values().place_plain(sum, Arena::kScratch, own);
  Forms rows;
  rows.columns = own.size();
  rows[ActivationForm::kF32] = {to.at<std::byte>(), to.stride_bytes, /*prompted=*/true,
                                /*generated=*/true};
  planner_.emit(FormStep{.input = from.plain->at<float>(own.begin),
                         .input_stride = from.plain->floats(),
                         .columns = own.size(),
                         .output = {.forms = rows}});
  planner_.values().consume(residual);
}

// Places the value that a sum ends in, and puts there what the sum begins with. Returns the value:
// the addition's with whose other operand it begins, or the sum's own.
ValueId ProductPlanner::begin_sum(ValueId sum, Arena arena, Range columns) {
  const auto start =
      start_of_sum(planner_.graph(), planner_.split(), planner_.values().readers(sum), sum);
  const ValueId target = start ? *planner_.values().readers(sum).only() : sum;
  const Stretch rows = planner_.values().place_plain(target, arena, columns);
  planner_.emit(ElementwiseStep{.function = start ? &kCopyFunction : &kZeroFunction,
                                .rows = planner_.graph().rows(target),
                                .routing = {},
                                .x = start ? planner_.operand(*start, columns) : PlainRows{},
                                .y = {},
                                .columns = columns.size(),
                                .output = {.rows = rows.at<float>(), .stride = rows.floats()}});
  if (start) {
    planner_.values().consume(*start);
    planner_.values().consume(sum);
  }
  finished_.push_back(target);
  return target;
}

// A partial result that is summed by a step of its own.
ResidualPlace ProductPlanner::place_partial(ValueId product) {
  meet_ = Meet::kAllRanks;
  const Range whole = {0, planner_.graph().columns(product)};
  const ValueId target = begin_sum(product, Arena::kExchange, whole);
  const Stretch partial = planner_.step_areas().take_f32(Arena::kExchange, whole.size(),
                                                         planner_.values().row_count(product));
  add_reduction(product, *planner_.values().of(target).plain, partial);
  return {partial.at<float>(), partial.floats(), false, std::nullopt};
}

ResidualPlace ProductPlanner::place_sum(ValueId sum) {
  const ValueId target = begin_sum(sum, Arena::kScratch, planner_.own_columns(sum));
  const Stretch rows = *planner_.values().of(target).plain;
  return {rows.at<float>(), rows.floats(), true, std::nullopt};
}

ResidualPlace ProductPlanner::place_rows(ValueId product) {
  finished_.push_back(product);
  const Stretch rows = planner_.values().place_plain(product, planner_.plain_arena(product),
                                                     planner_.own_columns(product));
  return {rows.at<float>(), rows.floats(), false, std::nullopt};
}

ResidualPlace ProductPlanner::place_logits() {
  meet_ = planner_.meet_behind_logits();
  const ArenaOffset<float> rows = planner_.place_logits();
  return {rows, planner_.plan().logits_stride, false, std::nullopt};
}

FormsOutput ProductPlanner::place_finished(ValueId value) {
  FormsOutput output = planner_.values().place_forms(value, planner_.own_columns(value));
  if (output.gather) meet_ = Meet::kAllRanks;
  finished_.clear();
  return output;
}

void ProductPlanner::emit(StepWork work) {
  planner_.emit(std::move(work), meet_);
  for (const ValueId partial : partial_values_) planner_.values().consume(partial);
  planner_.step_areas().release();
  for (const AllReduceStep& reduction : reductions_) planner_.emit(reduction, Meet::kAllRanks);
  for (const ValueId value : finished_) planner_.emit_forms(value);
}

}  // namespace lockstep
