#include "engine/graph/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace lockstep {
namespace {

// Two layers of the usual decoder, with weights of one format.
Graph make_graph(Format format) {
  constexpr size_t kColumns = 64;
  Graph graph;
  graph.set_rotary({RotaryPairs::kHalves, std::vector<double>(8, 1.0)});
  const auto matrix = [&](const std::string& name, size_t rows, size_t columns) {
    return graph.add_matrix(name, format, rows, columns);
  };
  const auto norm = [&](const std::string& name, size_t columns) {
    return graph.add_vector(name, Format::kF32, columns);
  };
  const WeightId table = matrix("embedding", 100, kColumns);
  ValueId x = graph.embed(table);
  for (size_t layer = 0; layer < 2; ++layer) {
    const std::string at = std::to_string(layer);
    const ValueId h = graph.rms_norm(x, norm("norm" + at, kColumns), 1e-5F);
    ValueId q = graph.matmul(h, matrix("q" + at, 64, kColumns));
    ValueId k = graph.matmul(h, matrix("k" + at, 32, kColumns));
    const ValueId v = graph.matmul(h, matrix("v" + at, 32, kColumns));
    q = graph.rotary(graph.head_norm(q, norm("qn" + at, 16), 1e-5F, 4), 4);
    k = graph.rotary(graph.head_norm(k, norm("kn" + at, 16), 1e-5F, 2), 2);
    const ValueId attended = graph.attention(layer, q, k, v, 4, 2, 0.25F);
    x = graph.add(x, graph.matmul(attended, matrix("o" + at, kColumns, 64)));
    const ValueId h2 = graph.rms_norm(x, norm("norm2" + at, kColumns), 1e-5F);
    const ValueId gate = graph.matmul(h2, matrix("gate" + at, 96, kColumns));
    const ValueId up = graph.matmul(h2, matrix("up" + at, 96, kColumns));
    x = graph.add(x, graph.matmul(graph.silu_multiply(gate, up), matrix("down" + at, 64, 96)));
  }
  const ValueId last = graph.rms_norm(graph.select_rows(x), norm("last", kColumns), 1e-5F);
  graph.set_logits(graph.matmul(last, table));
  return graph;
}

constexpr PlanOptions kOptions{.batch_tokens = 8, .logit_rows = 4, .kv_pages = 3};

template <typename T>
size_t count_steps(const Plan& plan) {
  return static_cast<size_t>(std::ranges::count_if(
      plan.steps, [](const Step& step) { return std::holds_alternative<T>(step); }));
}

TEST(Planner, a_quantized_layer_takes_ten_steps) {
  const Graph graph = make_graph(Format::kQ8_0);
  const Plan plan = make_plan(graph, kOptions);
  // Clear, rotary table, embed, and norm and product for the logits; the layers between.
  EXPECT_EQ(plan.steps.size(), 5 + 2 * 10U);
  EXPECT_EQ(count_steps<MatmulStep>(plan), 2 * 4 + 1U);
  EXPECT_EQ(count_steps<QuantizeStep>(plan), 2U);
}

TEST(Planner, products_of_one_input_are_one_step_and_residuals_are_added_in_place) {
  const Graph graph = make_graph(Format::kF32);
  const Plan plan = make_plan(graph, kOptions);
  EXPECT_EQ(count_steps<QuantizeStep>(plan), 0U);
  std::vector<size_t> parts;
  std::set<float*> accumulated;
  for (const Step& step : plan.steps) {
    const auto* matmul = std::get_if<MatmulStep>(&step);
    if (matmul == nullptr) continue;
    parts.push_back(matmul->parts.size());
    for (const MatmulPart& part : matmul->parts) {
      if (part.accumulate) accumulated.insert(part.output);
    }
  }
  EXPECT_EQ(parts, (std::vector<size_t>{3, 1, 2, 1, 3, 1, 2, 1, 1}));
  EXPECT_EQ(accumulated.size(), 1U);
  EXPECT_EQ(*accumulated.begin(), std::get<EmbedStep>(plan.steps[2]).output);
}

TEST(Planner, a_tied_matrix_is_held_once_and_slices_do_not_overlap) {
  const Graph graph = make_graph(Format::kF16);
  const Plan plan = make_plan(graph, kOptions, {.weights = 1U << 20U, .scratch = 1U << 21U});
  EXPECT_EQ(plan.weights.size(), graph.weights().size());
  std::byte* end = reinterpret_cast<std::byte*>(uintptr_t{1} << 20U);
  for (const WeightSlice& slice : plan.weights) {
    EXPECT_GE(slice.address, end);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(slice.address) % 64, 0U);
    end = slice.address + slice.size_bytes;
  }
  EXPECT_LE(reinterpret_cast<uintptr_t>(end), (1U << 20U) + plan.weight_bytes);
  EXPECT_EQ(std::get<EmbedStep>(plan.steps[2]).table.panels,
            std::get<MatmulStep>(plan.steps.back()).parts[0].matrix.panels);
}

TEST(Planner, logits_are_computed_for_the_rows_that_are_asked_for) {
  const Graph graph = make_graph(Format::kQ8_0);
  const Plan plan = make_plan(graph, kOptions);
  EXPECT_EQ(std::get<MatmulStep>(plan.steps.back()).rows, Rows::kLogits);
  EXPECT_EQ(std::get<NormStep>(plan.steps[plan.steps.size() - 2]).rows, Rows::kLogits);
  EXPECT_EQ(plan.vocabulary_size, 100U);
}

// What a step writes must not be what it reads, or what a later step still needs.
TEST(Planner, buffers_of_one_step_do_not_overlap) {
  const Graph graph = make_graph(Format::kQ8_0);
  const Plan plan = make_plan(graph, kOptions, {.scratch = 1U << 21U});
  for (const Step& step : plan.steps) {
    const auto* matmul = std::get_if<MatmulStep>(&step);
    if (matmul == nullptr) continue;
    const auto input_begin = reinterpret_cast<uintptr_t>(matmul->input.q8);
    const size_t rows = matmul->rows == Rows::kTokens ? 8 : 4;
    const uintptr_t input_end = input_begin + rows * matmul->input.q8_stride;
    for (const MatmulPart& part : matmul->parts) {
      const auto begin = reinterpret_cast<uintptr_t>(part.output);
      const uintptr_t end = begin + rows * part.output_stride * sizeof(float);
      EXPECT_TRUE(end <= input_begin || begin >= input_end);
      EXPECT_LE(end, (1U << 21U) + plan.scratch_bytes);
    }
  }
}

TEST(Planner, the_cache_holds_every_layer_and_head) {
  const Graph graph = make_graph(Format::kF32);
  const Plan plan = make_plan(graph, kOptions);
  EXPECT_EQ(plan.kv.layer_count, 2U);
  EXPECT_EQ(plan.kv.head_count, 2U);
  EXPECT_EQ(plan.kv.head_dimension, 16U);
  // 64 tokens x 16 dimensions x 2 bytes, keys and values, 2 layers, 2 heads, 3 pages.
  EXPECT_EQ(plan.kv.size_bytes(), 64 * 16 * 2 * 2 * 2 * 2 * 3U);
}

}  // namespace
}  // namespace lockstep
