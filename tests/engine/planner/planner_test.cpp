#include "engine/planner/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/kernels/gpu_batch.h"
#include "tests/engine/planner/plan_case.h"

namespace lockstep {
namespace {

TEST(Planner, a_layer_takes_five_steps) {
  for (const Format format : {Format::kF32, Format::kF16, Format::kQ8_0}) {
    const Graph graph = make_graph(format);
    const Plan plan = plan_alone(graph);
    // Clear, rotary table, embed, the first norm, and the product for the logits; the layers
    // between.
    EXPECT_EQ(plan.steps.size(), 5 + 2 * 5U);
    EXPECT_EQ(count_steps<MatmulStep>(plan), 2 * 4 + 1U);
    EXPECT_EQ(count_steps<AttendStep>(plan), 2U);
    EXPECT_EQ(count_steps<FormStep>(plan), 0U);
  }
}

TEST(Planner, heads_whose_outputs_are_no_whole_blocks_take_one_step_more) {
  Graph graph;  // one query head of 16 per KV head: two of them fill a block of 32
  const auto matrix = [&](const char* name, size_t rows, size_t columns) {
    return graph.add_matrix(name, Format::kQ8_0, rows, columns);
  };
  const WeightId table = matrix("table", 64, 32);
  const WeightId norm = graph.add_vector("norm", Format::kF32, 32);
  ValueId x = graph.embed(table);
  const ValueId h = graph.rms_norm(x, norm, 1e-5F);
  const ValueId attended =
      graph.attention(0, graph.matmul(h, matrix("q", 32, 32)), graph.matmul(h, matrix("k", 32, 32)),
                      graph.matmul(h, matrix("v", 32, 32)), 2, 2, {.scale = 1.0F});
  x = graph.add(x, graph.matmul(attended, matrix("o", 32, 32)));
  graph.set_logits(graph.matmul(graph.rms_norm(graph.select_rows(x), norm, 1e-5F), table));
  EXPECT_EQ(count_steps<FormStep>(plan_alone(graph)), 1U);
}

TEST(Planner, products_of_one_input_are_one_step_and_residuals_are_added_in_place) {
  const Graph graph = make_graph(Format::kF32);
  const Plan plan = plan_alone(graph);
  std::vector<size_t> parts;
  std::set<size_t> accumulated;
  for (const Step& step : plan.steps) {
    const auto* matmul = std::get_if<MatmulStep>(&step.work);
    if (matmul == nullptr) continue;
    parts.push_back(matmul->parts.size());
    for (const MatmulPart& part : matmul->parts) {
      if (part.accumulate) accumulated.insert(part.output.bytes);
    }
  }
  EXPECT_EQ(parts, (std::vector<size_t>{3, 1, 2, 1, 3, 1, 2, 1, 1}));
  EXPECT_EQ(accumulated.size(), 1U);
  EXPECT_EQ(*accumulated.begin(), std::get<EmbedStep>(plan.steps[2].work).output.bytes);
}

TEST(Planner, a_tied_matrix_is_held_once_and_slices_do_not_overlap) {
  const Graph graph = make_graph(Format::kF16);
  const Plan plan = plan_alone(graph);
  EXPECT_EQ(plan.weights.size(), graph.weights().size());
  size_t end = 0;
  for (const WeightSlice& slice : plan.weights) {
    EXPECT_GE(slice.offset, end);
    EXPECT_EQ(slice.offset % 64, 0U);
    end = slice.offset + slice.size_bytes;
  }
  EXPECT_LE(end, plan.weight_bytes);
  EXPECT_EQ(std::get<EmbedStep>(plan.steps[2].work).table,
            std::get<MatmulStep>(plan.steps.back().work).parts[0].matrix);
}

TEST(Planner, logits_are_computed_for_the_rows_that_are_asked_for) {
  const Graph graph = make_graph(Format::kQ8_0);
  const Plan plan = plan_alone(graph);
  EXPECT_EQ(std::get<MatmulStep>(plan.steps.back().work).rows, Rows::kLogits);
  const auto& down = std::get<MatmulStep>(plan.steps[plan.steps.size() - 2].work);
  ASSERT_EQ(std::get<ResidualFinish>(down.finish).norms.size(), 1U);
  EXPECT_EQ(std::get<ResidualFinish>(down.finish).norms[0].rows, Rows::kLogits);
  EXPECT_EQ(plan.vocabulary_size, 100U);
}

// Forms and sums that the finish of a product writes.
std::vector<Extent> written_forms(const MatmulStep& step) {
  std::vector<Extent> extents;
  if (const auto* gate = std::get_if<GateFinish>(&step.finish)) {
    add_forms(extents, gate->output.forms);
  } else if (const auto* residual = std::get_if<ResidualFinish>(&step.finish)) {
    add_norms(extents, *residual);
  }
  return extents;
}

// A product must not write over its input, nor outside the arenas.
TEST(Planner, buffers_of_one_step_do_not_overlap) {
  const Graph graph = make_graph(Format::kQ8_0);
  for (const Strategy strategy : {Strategy::kGather, Strategy::kReduce}) {
    for (const size_t rank_count : {1U, 2U}) {
      const Split split = split_evenly(graph, rank_count, strategy);
      const Plan plan = make_plan(graph, split, 0, kOptions);
      for (const Step& step : plan.steps) {
        const auto* matmul = std::get_if<MatmulStep>(&step.work);
        if (matmul == nullptr) continue;
        const size_t rows = matmul->rows == Rows::kTokens ? 8 : 4;
        const FormBuffer& q8 = matmul->input[ActivationForm::kQ8];
        const Extent input = extent(q8.rows, rows, q8.stride_bytes);
        for (const Extent& form : written_forms(*matmul)) EXPECT_FALSE(form.overlaps(input));
        for (const MatmulPart& part : matmul->parts) {
          Extent output = extent(part.output, rows, part.output_stride * sizeof(float));
          output.end -= part.output_stride * sizeof(float) - part.matrix.rows * sizeof(float);
          EXPECT_FALSE(output.overlaps(input));
          EXPECT_TRUE(is_held(output, plan));
        }
      }
    }
  }
}

TEST(Planner, the_cache_holds_every_layer_and_head) {
  const Graph graph = make_graph(Format::kF32);
  const Plan plan = plan_alone(graph);
  ASSERT_EQ(plan.kv.layers.size(), 2U);
  EXPECT_EQ(plan.kv.layers[1].head_count, 2U);
  EXPECT_EQ(plan.kv.layers[1].key_dimension, 16U);
  // 64 tokens x 16 dimensions x 2 bytes, keys and values, 2 layers, 2 heads, 3 pages.
  EXPECT_EQ(plan.kv.size_bytes(), 64 * 16 * 2 * 2 * 2 * 2 * 3U);
}

TEST(Planner, hidden_rows_are_those_columns_of_the_last_residual_that_each_rank_computes) {
  const Graph graph = make_graph(Format::kF32);
  for (const Strategy strategy : {Strategy::kGather, Strategy::kReduce}) {
    for (const size_t rank_count : {1U, 2U}) {
      size_t end = 0;
      for (size_t rank = 0; rank < rank_count; ++rank) {
        const Plan plan =
            make_plan(graph, split_evenly(graph, rank_count, strategy), rank, kOptions);
        const HiddenRows& hidden = plan.hidden;
        EXPECT_EQ(hidden.width, 64U);
        EXPECT_EQ(hidden.epsilon, 1e-5F);
        if (hidden.columns.empty()) continue;
        EXPECT_EQ(hidden.columns.begin, end);
        end = hidden.columns.end;
        const auto& embed = std::get<EmbedStep>(plan.steps[2].work);
        EXPECT_EQ(hidden.residual, ArenaOffset<const float>(embed.output + hidden.columns.begin));
        EXPECT_EQ(hidden.residual_stride, embed.output_stride);
      }
      EXPECT_EQ(end, 64U);
    }
  }
}

// Ranks walk in lockstep: the same steps, and the barriers of all ranks in the same places.
TEST(Planner, all_ranks_have_the_same_steps_and_exchange_at_the_same_places) {
  for (const auto& [format, is_mixture] : {std::pair{Format::kF32, false},
                                           {Format::kQ8_0, false},
                                           {Format::kF32, true},
                                           {Format::kQ8_0, true}}) {
    const Graph graph = make_graph(format, is_mixture);
    for (const Strategy strategy : {Strategy::kGather, Strategy::kReduce}) {
      const Split split = split_evenly(graph, 2, strategy);
      const Plan first = make_plan(graph, split, 0, kOptions);
      const Plan second = make_plan(graph, split, 1, kOptions);
      EXPECT_EQ(first.exchange_bytes, second.exchange_bytes);
      EXPECT_EQ(second.logits_bytes, 0U);
      ASSERT_EQ(first.steps.size(), second.steps.size());
      for (size_t step = 0; step < first.steps.size(); ++step) {
        EXPECT_EQ(first.steps[step].work.index(), second.steps[step].work.index());
        EXPECT_EQ(first.steps[step].meet, second.steps[step].meet);
      }
    }
  }
}

size_t meetings_of_all_ranks(const Plan& plan) {
  return static_cast<size_t>(std::ranges::count(plan.steps, Meet::kAllRanks, &Step::meet));
}

TEST(Planner, gather_exchanges_four_times_per_layer_and_reduce_twice) {
  for (const bool is_mixture : {false, true}) {
    const Graph graph = make_graph(Format::kQ8_0, is_mixture);
    const Plan gather = make_plan(graph, split_evenly(graph, 2), 0, kOptions);
    // Two layers, the embedding and the logits.
    EXPECT_EQ(meetings_of_all_ranks(gather), 2 * 4 + 2U);
    EXPECT_EQ(count_steps<AllReduceStep>(gather), 0U);
    const Plan reduce = make_plan(graph, split_evenly(graph, 2, Strategy::kReduce), 0, kOptions);
    EXPECT_EQ(count_steps<AllReduceStep>(reduce), 2 * 2U);
  }
}

// Extents of this rank's memory that a step reads, and those that other ranks write in that step.
struct Traffic {
  std::vector<Extent> reads;
  std::vector<Extent> pushes;
};

template <typename T>
void add(std::vector<Extent>& extents, const ArenaOffset<T>& base, size_t stride_bytes) {
  if (base) extents.push_back(extent(base, kOptions.batch_tokens, stride_bytes));
}

bool is_gathered(const MatmulStep& step) {
  if (const auto* gate = std::get_if<GateFinish>(&step.finish)) return gate->output.gather;
  const auto* residual = std::get_if<ResidualFinish>(&step.finish);
  return residual != nullptr && !residual->norms.empty() && residual->norms[0].output.gather;
}

// The same of the steps that are there where fusion rules are switched off.
Traffic plain_traffic_of(const Step& step) {
  Traffic traffic;
  const auto read = [&](const PlainRows& rows) {
    add(traffic.reads, rows.rows, rows.stride * sizeof(float));
  };
  const auto push = [&](const PlainOutput& output, Rows rows) {
    for (const FormsOutput& forms : output.forms) {
      const size_t count = rows == Rows::kExperts ? kExpertOutputRows : kOptions.batch_tokens;
      if (forms.gather) add_forms(traffic.pushes, forms.forms, count);
    }
  };
  if (const auto* element = std::get_if<ElementwiseStep>(&step.work)) {
    read(element->x);
    read(element->y);
    push(element->output, element->rows);
  } else if (const auto* heads = std::get_if<HeadsStep>(&step.work)) {
    read(heads->input);
  } else if (const auto* sums = std::get_if<NormSumsStep>(&step.work)) {
    read(sums->input);
    if (sums->gather) add_chunks(traffic.pushes, sums->chunks);
  } else if (const auto* scale = std::get_if<NormScaleStep>(&step.work)) {
    read(scale->input);
    add_chunks(traffic.reads, scale->norm.chunks);
    push(scale->output, scale->rows);
  } else if (const auto* product = std::get_if<ExpertProductStep>(&step.work)) {
    add_forms(traffic.reads, product->input);
    add_chunks(traffic.reads, product->norm.chunks);
  }
  return traffic;
}

// Whole rows: a push goes into other columns than this rank's, of the same rows.
Traffic traffic_of(const Step& step) {
  Traffic traffic;
  constexpr size_t kFloat = sizeof(float);
  if (const auto* embed = std::get_if<EmbedStep>(&step.work)) {
    add(traffic.pushes, embed->output, embed->output_stride * kFloat);
  } else if (const auto* norm = std::get_if<NormStep>(&step.work)) {
    add(traffic.reads, norm->residual, norm->residual_stride * kFloat);
    if (norm->norm.output.gather) add_norms(traffic.pushes, {{norm->norm}});
  } else if (const auto* matmul = std::get_if<MatmulStep>(&step.work)) {
    add_forms(traffic.reads, matmul->input);
    add_chunks(traffic.reads, matmul->norm.chunks);
    if (is_gathered(*matmul)) traffic.pushes = written_forms(*matmul);
  } else if (const auto* gate = std::get_if<ExpertGateStep>(&step.work)) {
    add_forms(traffic.reads, gate->input);
    add_chunks(traffic.reads, gate->norm.chunks);
    if (gate->output.gather) add_forms(traffic.pushes, gate->output.forms, kExpertOutputRows);
  } else if (const auto* experts = std::get_if<ExpertSumStep>(&step.work)) {
    add_forms(traffic.reads, experts->input, kExpertOutputRows);
    const auto& norms = experts->finish.norms;
    if (!norms.empty() && norms[0].output.gather) add_norms(traffic.pushes, experts->finish);
  } else if (const auto* attend = std::get_if<AttendStep>(&step.work)) {
    if (attend->forms && attend->forms->gather) add_forms(traffic.pushes, attend->forms->forms);
  } else if (const auto* form = std::get_if<FormStep>(&step.work)) {
    add(traffic.reads, form->input, form->input_stride * kFloat);
    if (form->output.gather) add_forms(traffic.pushes, form->output.forms);
  } else if (const auto* sum = std::get_if<AllReduceStep>(&step.work)) {
    add(traffic.reads, sum->partial, sum->partial_stride * kFloat);
    add(traffic.pushes, sum->output, sum->output_stride * kFloat);
  } else {
    return plain_traffic_of(step);
  }
  return traffic;
}

// Another rank may be as far ahead as the next barrier of all ranks lets it be: between a step that
// reads a buffer and the next that is pushed into it there must be such a barrier.
void expect_no_push_into_what_is_read(const Plan& plan) {
  for (size_t reader = 0; reader < plan.steps.size(); ++reader) {
    const std::vector<Extent> reads = traffic_of(plan.steps[reader]).reads;
    for (size_t ahead = reader + 1; ahead < plan.steps.size(); ++ahead) {
      if (plan.steps[ahead - 1].meet == Meet::kAllRanks) break;
      for (const Extent& push : traffic_of(plan.steps[ahead]).pushes) {
        for (const Extent& read : reads) {
          EXPECT_FALSE(push.overlaps(read))
              << "step " << ahead << " into what step " << reader << " reads";
        }
      }
    }
  }
}

class Pushes : public testing::TestWithParam<bool> {};

TEST_P(Pushes, go_into_nothing_that_another_rank_may_still_read) {
  const bool plain = GetParam();
  size_t plans = 0;
  for (const auto& [format, is_mixture] : {std::pair{Format::kF32, false},
                                           {Format::kQ8_0, false},
                                           {Format::kF16, false},
                                           {Format::kQ8_0, true}}) {
    const Graph graph = make_graph(format, is_mixture);
    for (const std::vector<double>& shares :
         std::vector<std::vector<double>>{{1, 1}, {3, 1}, {2, 1, 1}, {1, 1, 1}}) {
      for (const Strategy strategy : {Strategy::kGather, Strategy::kReduce}) {
        const auto split = split_graph(graph, shares, strategy);
        if (!split) continue;  // columns of so few blocks cannot always be cut
        for (const bool bf16 : {false, true}) {
          PlanOptions options = kOptions;
          options.bf16_sums = bf16;
          if (plain) options.without_fusion.add_all();
          for (size_t rank = 0; rank < shares.size(); ++rank) {
            expect_no_push_into_what_is_read(make_plan(graph, *split, rank, options));
            ++plans;
          }
        }
      }
    }
  }
  EXPECT_GE(plans, 4 * 2 * (2 + 2 + 3 + 3U)) << "gather can always be planned";
}
INSTANTIATE_TEST_SUITE_P(Planner, Pushes, testing::Bool(), [](const auto& plain) {
  return std::string(plain.param ? "of_plain_steps" : "of_fused_steps");
});

TEST(Planner, ranks_without_heads_and_uneven_ones_walk_the_same_steps) {
  const Graph graph = make_graph(Format::kQ8_0);  // four heads of 16: two cuts of 32 columns
  for (const std::vector<double>& shares :
       std::vector<std::vector<double>>{{3, 1}, {1, 1, 1, 1}, {2, 1, 1}}) {
    const Split split = split_graph(graph, shares, Strategy::kGather).value();
    const Plan first = make_plan(graph, split, 0, kOptions);
    for (size_t rank = 1; rank < shares.size(); ++rank) {
      const Plan other = make_plan(graph, split, rank, kOptions);
      EXPECT_EQ(other.exchange_bytes, first.exchange_bytes);
      ASSERT_EQ(other.steps.size(), first.steps.size());
      for (size_t step = 0; step < first.steps.size(); ++step) {
        EXPECT_EQ(first.steps[step].work.index(), other.steps[step].work.index());
        EXPECT_EQ(first.steps[step].meet, other.steps[step].meet);
      }
    }
  }
}

// However many they are: without units a token is attended to by one block alone.
TEST(Planner, on_a_gpu_there_is_space_for_all_units_of_a_token_of_every_sequence) {
  const Graph graph = make_graph(Format::kQ8_0);
  RankPlace place;
  place.device = GpuPlace{0};
  for (const size_t sequences : {size_t{8}, size_t{64}, size_t{200}}) {
    PlanOptions options = kOptions;
    options.batch_tokens = 512;
    options.sequences = sequences;
    options.kv_pages = sequences * kGpuTokenUnits;
    const Plan plan = make_plan(graph, split_evenly(graph, 1), 0, options_on(place, options));
    const auto& areas = std::get<GpuAreas>(plan.areas);
    EXPECT_GE(areas.partials.unit_count, sequences * kGpuTokenUnits);
    EXPECT_EQ(areas.limits.attention_units, areas.partials.unit_count);
  }
}

}  // namespace
}  // namespace lockstep
