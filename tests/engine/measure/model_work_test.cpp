#include "engine/measure/model_work.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// One layer: what every token meets, and an output matrix that only some do.
Graph make_graph(size_t window = 0, size_t section = 0) {
  Graph graph;
  const ValueId x = graph.embed(graph.add_matrix("embedding", Format::kF16, 1000, 64));
  const ValueId q = graph.matmul(x, graph.add_matrix("q", Format::kQ8_0, 64, 64));
  const ValueId k = graph.matmul(x, graph.add_matrix("k", Format::kQ8_0, 32, 64));
  const ValueId v = graph.matmul(x, graph.add_matrix("v", Format::kF32, 32, 64));
  const ValueId mixed =
      graph.attention(0, q, k, v, 4, 2, {.scale = 1.0F, .window = window, .section = section});
  const ValueId rows = graph.select_rows(graph.add(x, mixed));
  const ValueId normed = graph.rms_norm(rows, graph.add_vector("norm", Format::kF32, 64), 1e-5F);
  graph.set_logits(graph.matmul(normed, graph.add_matrix("output", Format::kF16, 1000, 64)));
  return graph;
}

constexpr double kLayerBytes = (64 + 32) * 2 * 34 + 32 * 64 * 4;  // Q8_0: 34 bytes for 32
constexpr double kLayerElements = (64 + 32 + 32) * 64;
constexpr double kKvBytes = 2 * 32 * 2;  // keys and values of two heads of 16, in 2 bytes

TEST(ModelWork, counts_each_matrix_once_a_pass_and_its_elements_once_a_token) {
  const ModelWork work(make_graph(), KvFormat::kF16);
  const std::vector<uint32_t> pages = {0, 1};
  Batch batch;
  batch.page_tables = {pages, pages, pages};
  // Two sequences of three: tokens 10, 11 and 12 of one, token 40 of another.
  for (const uint32_t position : {10U, 11U, 12U}) batch.tokens.push_back({1, position, 0});
  batch.tokens.push_back({1, 40, 2});
  MeasuredWork done;
  work.add(batch, done);
  EXPECT_EQ(done.bytes, kLayerBytes + (13 + 41) * kKvBytes);
  EXPECT_EQ(done.operations, 2 * 4 * kLayerElements);
  batch.logit_tokens = {2, 3};
  done = {};
  work.add(batch, done);
  EXPECT_EQ(done.bytes, kLayerBytes + (13 + 41) * kKvBytes + 1000 * 64 * 2);
  EXPECT_EQ(done.operations, 2 * (4 * kLayerElements + 2 * 1000 * 64));
  EXPECT_EQ(done.seconds, 0);
}

TEST(ModelWork, adds_up_and_knows_the_caches_format) {
  const ModelWork work(make_graph(), KvFormat::kF32);
  const std::vector<uint32_t> pages = {0};
  Batch batch;
  batch.page_tables = {pages};
  batch.tokens.push_back({1, 0, 0});
  MeasuredWork done;
  work.add(batch, done);
  work.add(batch, done);
  EXPECT_EQ(done.bytes, 2 * (kLayerBytes + 2 * kKvBytes));
  EXPECT_EQ(done.operations, 2 * 2 * kLayerElements);
}

// The bytes that a pass reads: the tokens 10, 11 and 12 of one sequence, and one token of another.
double bytes_of_two_sequences(const ModelWork& work, uint32_t other_position) {
  const std::vector<uint32_t> pages = {0};
  Batch batch;
  batch.page_tables = {pages, pages};
  for (const uint32_t position : {10U, 11U, 12U}) batch.tokens.push_back({1, position, 0});
  batch.tokens.push_back({1, other_position, 1});
  MeasuredWork done;
  work.add(batch, done);
  return done.bytes;
}

TEST(ModelWork, counts_no_key_outside_the_window) {
  // The first of three tokens sees 3 to 10, the last 5 to 12.
  const ModelWork work(make_graph(/*window=*/8), KvFormat::kF16);
  EXPECT_EQ(bytes_of_two_sequences(work, 4), kLayerBytes + (10 + 5) * kKvBytes);
}

TEST(ModelWork, counts_no_key_of_an_earlier_section) {
  // The first of three tokens sees 8 to 10, the last 12 alone.
  const ModelWork work(make_graph(/*window=*/0, /*section=*/4), KvFormat::kF16);
  EXPECT_EQ(bytes_of_two_sequences(work, 7), kLayerBytes + (5 + 4) * kKvBytes);
}

// Each token goes to one of four experts: two tokens meet 1 - (3/4)^2 of them, if by chance.
TEST(ModelWork, counts_the_experts_that_tokens_meet) {
  Graph graph;
  const ValueId x = graph.embed(graph.add_matrix("embedding", Format::kF16, 100, 64));
  const ValueId scores = graph.matmul(x, graph.add_matrix("router", Format::kF32, 4, 64));
  std::vector<WeightId> experts;
  for (size_t expert = 0; expert < 4; ++expert) {
    experts.push_back(graph.add_matrix("experts", Format::kF16, 64, 64, expert * 64));
  }
  const ValueId sum = graph.expert_sum(x, graph.route(scores, 1), experts);
  graph.set_logits(graph.matmul(sum, graph.add_matrix("output", Format::kF16, 100, 64)));
  const ModelWork work(graph, KvFormat::kF16);
  const std::vector<uint32_t> pages = {0};
  Batch batch;
  batch.page_tables = {pages};
  constexpr double kDense = 4 * 64 * 4 + 100 * 64 * 2;  // here every row has logits
  constexpr double kExpert = 64 * 64 * 2;
  for (const double met : {1.0, 1.75}) {
    batch.tokens.push_back({1, static_cast<uint32_t>(batch.tokens.size()), 0});
    MeasuredWork done;
    work.add(batch, done);
    EXPECT_EQ(done.bytes, kDense + met * kExpert);
    EXPECT_EQ(done.operations,
              2 * static_cast<double>(batch.tokens.size()) * (4 * 64 + 100 * 64 + 64 * 64));
  }
}

}  // namespace
}  // namespace lockstep
