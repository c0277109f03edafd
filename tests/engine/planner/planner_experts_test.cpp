// Plans of mixtures of experts; what they have in common with others is in planner_test.cpp.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/engine/planner/plan_case.h"

namespace lockstep {
namespace {

TEST(PlannerOfExperts, a_layer_of_a_mixture_takes_seven_steps_and_holds_every_expert_once) {
  const Graph graph = make_graph(Format::kQ8_0, /*is_mixture=*/true);
  const Plan plan = plan_alone(graph);
  EXPECT_EQ(plan.steps.size(), 5 + 2 * 7U);
  EXPECT_EQ(count_steps<RouteStep>(plan), 2U);
  std::set<size_t> matrices;
  for (const Step& step : plan.steps) {
    const auto add = [&](const ExpertPart& part) {
      EXPECT_EQ(part.matrices.size(), kExpertCount);
      for (const PlannedMatrix& matrix : part.matrices) matrices.insert(matrix.data.bytes);
    };
    if (const auto* gate = std::get_if<ExpertGateStep>(&step.work)) {
      add(gate->gate);
      add(gate->up);
      EXPECT_EQ(gate->routing.chosen_count, kChosenCount);
    }
    if (const auto* sum = std::get_if<ExpertSumStep>(&step.work)) {
      add(sum->down);
      EXPECT_TRUE(sum->accumulate);
      EXPECT_EQ(sum->down.output, std::get<EmbedStep>(plan.steps[2].work).output);
      EXPECT_EQ(sum->finish.norms.size(), 1U);
    }
  }
  EXPECT_EQ(matrices.size(), 2 * 3 * kExpertCount);
}

// As a GPU's beside nodes.
TEST(PlannerOfExperts, a_rank_without_experts_has_no_places_for_their_workers) {
  const Graph graph = make_graph(Format::kQ8_0, /*is_mixture=*/true);
  const Shares by_kind = {.dense = {1, 0}, .experts = {0, 1}};
  const Split split = split_graph(graph, by_kind, Strategy::kReduce).value();
  const auto scratch_bytes = [&](size_t rank, size_t workers) {
    PlanOptions options = kOptions;
    options.workers = workers;
    return make_plan(graph, split, rank, options).scratch_bytes;
  };
  EXPECT_EQ(scratch_bytes(0, 8), scratch_bytes(0, 1));
  EXPECT_GT(scratch_bytes(1, 8), scratch_bytes(1, 1));
}

size_t last_sum(const Plan& plan) {
  size_t last = 0;
  for (size_t step = 0; step < plan.steps.size(); ++step) {
    if (std::holds_alternative<AllReduceStep>(plan.steps[step].work)) last = step;
  }
  return last;
}

// The plan's steps from this one on compute nothing.
void expect_nothing_computed(const Plan& plan, size_t begin) {
  for (size_t step = begin; step < plan.steps.size(); ++step) {
    const StepWork& work = plan.steps[step].work;
    if (const auto* product = std::get_if<MatmulStep>(&work)) {
      EXPECT_TRUE(product->parts.empty());
      EXPECT_TRUE(std::holds_alternative<std::monostate>(product->finish) ||
                  std::holds_alternative<GateFinish>(product->finish) ||
                  std::get<ResidualFinish>(product->finish).norms.empty());
    }
    if (const auto* route = std::get_if<RouteStep>(&work)) {
      EXPECT_FALSE(route->scores);
    }
    if (const auto* sum = std::get_if<ExpertSumStep>(&work)) {
      EXPECT_EQ(sum->down.matrices.front().rows, 0U);
      EXPECT_TRUE(sum->finish.norms.empty());
    }
    if (const auto* form = std::get_if<FormStep>(&work)) {
      EXPECT_EQ(form->columns, 0U);
    }
  }
  EXPECT_TRUE(plan.hidden.columns.empty());
}

// From this step on, the residual is copied out of the exchange arena once, and then added to in
// its place in the scratch arena: twice. Returns the place.
ArenaOffset<float> expect_added_in_place(const Plan& plan, size_t begin) {
  ArenaOffset<float> residual;
  size_t additions = 0;
  for (size_t step = begin; step < plan.steps.size(); ++step) {
    const StepWork& work = plan.steps[step].work;
    if (const auto* form = std::get_if<FormStep>(&work)) {
      EXPECT_FALSE(residual);
      EXPECT_EQ(form->input, ArenaOffset<const float>(
                                 std::get<AllReduceStep>(plan.steps[begin - 1].work).output));
      const ArenaOffset<std::byte> rows = form->output.forms[ActivationForm::kF32].rows;
      residual = {rows.arena, rows.bytes};
      EXPECT_EQ(residual.arena, Arena::kScratch);
      EXPECT_LT(residual.bytes, plan.scratch_bytes);
    }
    if (const auto* product = std::get_if<MatmulStep>(&work);
        product != nullptr && product->parts.front().accumulate) {
      EXPECT_EQ(product->parts.front().output, residual);
      EXPECT_EQ(std::get<ResidualFinish>(product->finish).norms.size(), 1U);
      ++additions;
    }
    if (const auto* sum = std::get_if<ExpertSumStep>(&work)) {
      EXPECT_TRUE(sum->accumulate);
      EXPECT_EQ(sum->down.output, residual);
      EXPECT_EQ(sum->finish.norms.size(), 1U);
      ++additions;
    }
  }
  EXPECT_EQ(additions, 2U);
  return residual;
}

// The graph has two layers. The nodes have the first one's experts; the GPU has the second one's
// and all else.
TEST(PlannerOfExperts, once_one_rank_has_all_that_is_left_nothing_is_exchanged) {
  const Graph graph = make_graph(Format::kQ8_0, /*is_mixture=*/true);
  const Shares shares = {.dense = {1, 0, 0}, .experts = {0, 2, 1}, .apart_layers = 1};
  const Split split = split_graph(graph, shares, Strategy::kReduce).value();
  std::vector<Plan> plans;
  for (size_t rank = 0; rank < 3; ++rank) {
    plans.push_back(make_plan(graph, split, rank, kOptions));
  }
  const size_t begin = last_sum(plans[0]) + 1;
  for (const Plan& plan : plans) {
    EXPECT_EQ(count_steps<AllReduceStep>(plan), 2U);
    EXPECT_EQ(last_sum(plan) + 1, begin);
    ASSERT_EQ(plan.steps.size(), plans[0].steps.size());
    for (size_t step = begin; step < plan.steps.size(); ++step) {
      EXPECT_EQ(plan.steps[step].work.index(), plans[0].steps[step].work.index());
      const bool is_last = step + 1 == plan.steps.size();  // which computes the logits
      EXPECT_EQ(plan.steps[step].meet == Meet::kAllRanks, is_last);
    }
    EXPECT_EQ(plan.exchange_bytes, plans[0].exchange_bytes);
  }
  for (const size_t rank : {1U, 2U}) expect_nothing_computed(plans[rank], begin);
  const ArenaOffset<const float> residual = expect_added_in_place(plans[0], begin);
  EXPECT_EQ(plans[0].hidden.residual, residual);
  EXPECT_EQ(plans[0].hidden.columns, (Range{0, 64}));
}

void add_routing(std::vector<Extent>& extents, const Routing& routing, const NodeAreas& areas) {
  const auto add = [&](const auto& base, size_t count) {
    extents.push_back(extent(base, count, sizeof(float)));
  };
  add(routing.chosen, kExpertOutputRows);
  add(routing.weights, kExpertOutputRows);
  add(routing.row_tokens, kExpertOutputRows);
  add(routing.row_begin, kExpertCount + 1);
  add(areas.row_weights, kExpertOutputRows);
  add(areas.generated_end, kExpertCount);
}

void add_part(std::vector<Extent>& extents, const ExpertPart& part, size_t rows) {
  extents.push_back(extent(part.output, rows, part.output_stride * sizeof(float)));
}

// All that a step of experts reads and writes, of a rank by itself.
std::vector<Extent> places_of(const ExpertGateStep& step, const NodeAreas& areas) {
  std::vector<Extent> places;
  add_forms(places, step.input);
  add_forms(places, step.gathered->rows, kExpertRows * step.gathered->workers);
  add_chunks(places, step.norm.chunks);
  add_routing(places, step.routing, areas);
  add_part(places, step.gate, kExpertOutputRows);
  add_part(places, step.up, kExpertOutputRows);
  add_forms(places, step.output.forms, kExpertOutputRows);
  return places;
}

std::vector<Extent> places_of(const ExpertSumStep& step, const NodeAreas& areas) {
  std::vector<Extent> places;
  add_forms(places, step.input, kExpertOutputRows);
  add_routing(places, step.routing, areas);
  add_part(places, step.down, kOptions.batch_tokens);
  const auto& products = std::get<WorkerProducts>(step.products);
  places.push_back(
      extent(products.rows, kExpertRows * products.workers, products.stride * sizeof(float)));
  add_norms(places, step.finish);
  return places;
}

TEST(PlannerOfExperts, buffers_do_not_overlap) {
  for (const Format format : {Format::kF32, Format::kQ8_0}) {
    const Graph graph = make_graph(format, /*is_mixture=*/true);
    for (const size_t rank_count : {1U, 2U}) {
      PlanOptions options = kOptions;
      options.workers = 3;
      const Plan plan = make_plan(graph, split_evenly(graph, rank_count), 0, options);
      const auto& areas = std::get<NodeAreas>(plan.areas);
      size_t steps = 0;
      for (const Step& step : plan.steps) {
        std::vector<Extent> places;
        if (const auto* gate = std::get_if<ExpertGateStep>(&step.work))
          places = places_of(*gate, areas);
        if (const auto* sum = std::get_if<ExpertSumStep>(&step.work))
          places = places_of(*sum, areas);
        steps += places.empty() ? 0 : 1;
        for (size_t one = 0; one < places.size(); ++one) {
          EXPECT_TRUE(is_held(places[one], plan));
          for (size_t other = one + 1; other < places.size(); ++other) {
            EXPECT_FALSE(places[one].overlaps(places[other])) << one << " and " << other;
          }
        }
      }
      EXPECT_EQ(steps, 2 * 2U);
    }
  }
}

}  // namespace
}  // namespace lockstep
