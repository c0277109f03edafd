// Layers that keep a state of each sequence: what they compute is what float64 does of the whole
// text, and no bit of it depends on how the text came in pieces, on neighbours, on what the slot
// held before, or on ranks, shares and workers.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "engine/planner/gpu_gap.h"
#include "engine/planner/split_graph.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/random_graph.h"
#include "tests/engine/runtime/reference_model.h"
#include "tests/engine/runtime/value_or_throw.h"

namespace lockstep {
namespace {

constexpr size_t kVocabulary = 150;

// Adds weights under names of their own; the seed says of which format all matrices are.
class SeededWeights {
 public:
  SeededWeights(Graph& graph, uint64_t seed) : graph_(graph), format_(kFormats[seed % 3]) {}

  WeightId matrix(size_t rows, size_t columns) const {
    return graph_.add_matrix(name("matrix"), format_, rows, columns);
  }
  WeightId vector(const char* kind, size_t columns) const {
    return graph_.add_vector(name(kind), Format::kF32, columns);
  }

 private:
  static constexpr std::array kFormats = {Format::kF32, Format::kQ8_0, Format::kBf16};

  std::string name(const char* kind) const {
    return fmt::format("{}.{}", kind, graph_.weights().size());
  }

  Graph& graph_;
  Format format_;
};

// By seed: the taps of the two convolutions, and the format of all matrices. Nothing else knows
// of earlier tokens, but for attention in every second graph.
Graph graph_with_states(uint64_t seed) {
  constexpr std::array<size_t, 4> kTaps = {2, 3, 4, kMostTaps};
  constexpr size_t kColumns = 96;
  constexpr size_t kWide = 160;
  Graph graph;
  const SeededWeights weights(graph, seed);
  const auto norm = [&](ValueId x) {
    return graph.rms_norm(x, weights.vector("norm", graph.columns(x)), 1e-5F);
  };
  const WeightId table = weights.matrix(kVocabulary, kColumns);
  ValueId x = graph.embed(table);
  ValueId h = norm(x);
  const ValueId before = graph.matmul(h, weights.matrix(kWide, kColumns));
  const ValueId behind = graph.matmul(h, weights.matrix(kWide, kColumns));
  const ValueId input = graph.matmul(h, weights.matrix(kWide, kColumns));
  const ValueId gated = graph.convolve_gated(input, before, behind,
                                             weights.vector("factors", kWide * kTaps[seed % 4]));
  x = graph.add(x, graph.matmul(gated, weights.matrix(kColumns, kWide)));
  if (seed % 2 == 1) {
    h = norm(x);
    const ValueId q = graph.matmul(h, weights.matrix(64, kColumns));
    const ValueId k = graph.matmul(h, weights.matrix(32, kColumns));
    const ValueId v = graph.matmul(h, weights.matrix(32, kColumns));
    const ValueId attended = graph.attention(1, q, k, v, 4, 2, {.scale = 0.25F});
    x = graph.add(x, graph.matmul(attended, weights.matrix(kColumns, 64)));
  }
  h = norm(x);
  const ValueId plain =
      graph.convolve(h, weights.vector("factors", kColumns * kTaps[(seed / 2 + 1) % 4]),
                     weights.vector("bias", kColumns));
  const ValueId activated = graph.activation(ActivationFunction::kSilu, plain);
  x = graph.add(x, graph.matmul(activated, weights.matrix(kColumns, kColumns)));
  graph.set_logits(graph.matmul(norm(graph.select_rows(x)), table));
  return graph;
}

// By seed: the heads, how value heads belong to key heads, and the format of all matrices. With
// decays of each row of a state these are of low rank, and so is what gates the results.
Graph make_delta_net(uint64_t seed, bool has_row_decays) {
  constexpr size_t kColumns = 96;
  const size_t dimension = seed % 4 == 3 ? 48 : 32;
  const DeltaShape shape = {.value_heads = seed % 2 == 0 ? size_t{4} : size_t{6},
                            .key_heads = seed % 3 == 2 ? size_t{1} : size_t{2},
                            .is_tiled = seed / 2 % 2 == 0,
                            .epsilon = 1e-6F};
  const size_t values = seed % 3 == 1 ? 96 : 32;
  Graph graph;
  const SeededWeights weights(graph, seed);
  const WeightId table = weights.matrix(kVocabulary, kColumns);
  ValueId x = graph.embed(table);
  const ValueId h = graph.rms_norm(x, weights.vector("norm", kColumns), 1e-5F);
  const auto convolved = [&](size_t columns) {
    const ValueId product = graph.matmul(h, weights.matrix(columns, kColumns));
    const ValueId y = graph.convolve(product, weights.vector("factors", 4 * columns));
    return graph.activation(ActivationFunction::kSilu, y);
  };
  const ValueId q = convolved(shape.key_heads * dimension);
  const ValueId k = convolved(shape.key_heads * dimension);
  const ValueId v = convolved(shape.value_heads * values);
  const ValueId beta = graph.matmul(h, weights.matrix(shape.value_heads, kColumns));
  const auto narrow = [&](size_t columns) {
    const ValueId read = has_row_decays ? graph.matmul(h, weights.matrix(64, kColumns)) : h;
    return graph.matmul(read, weights.matrix(columns, graph.columns(read)));
  };
  const size_t decays = shape.value_heads * (has_row_decays ? dimension : 1);
  const ValueId alpha = narrow(decays);
  // Before the delta net, if it is no product of what the others are.
  ValueId open = has_row_decays ? narrow(shape.value_heads * values) : kNone;
  const ValueId y =
      graph.delta_net(v, q, k, beta, alpha, weights.vector("decay", shape.value_heads),
                      weights.vector("bias", decays), shape);
  const ValueId normed =
      graph.head_norm(y, weights.vector("norm", values), 1e-6F, shape.value_heads);
  if (!has_row_decays) open = narrow(shape.value_heads * values);
  const auto function = has_row_decays ? ActivationFunction::kSigmoid : ActivationFunction::kSilu;
  const ValueId gated = graph.gate(function, open, normed);
  x = graph.add(x, graph.matmul(gated, weights.matrix(kColumns, shape.value_heads * values)));
  const ValueId last =
      graph.rms_norm(graph.select_rows(x), weights.vector("norm", kColumns), 1e-5F);
  graph.set_logits(graph.matmul(last, table));
  return graph;
}

Graph graph_with_delta_net(uint64_t seed) {
  return make_delta_net(seed, /*has_row_decays=*/false);
}

Graph graph_with_row_decays(uint64_t seed) {
  return make_delta_net(seed, /*has_row_decays=*/true);
}

// By seed: the heads, their groups and sizes, what is made of their results, and the format of all
// matrices.
Graph graph_with_scan(uint64_t seed) {
  constexpr size_t kColumns = 96;
  const DeltaShape shape = {.value_heads = seed % 2 == 0 ? size_t{8} : size_t{12},
                            .key_heads = std::array<size_t, 3>{1, 2, 4}[seed % 3]};
  const size_t dimension = seed % 4 == 3 ? 41 : 16;
  const size_t each = std::array<size_t, 3>{16, 64, 80}[seed / 2 % 3];
  const size_t wide = shape.value_heads * each;
  Graph graph;
  const SeededWeights weights(graph, seed);
  const WeightId table = weights.matrix(kVocabulary, kColumns);
  ValueId x = graph.embed(table);
  const ValueId h = graph.rms_norm(x, weights.vector("norm", kColumns), 1e-5F);
  const auto product = [&](size_t columns) {
    return graph.matmul(h, weights.matrix(columns, kColumns));
  };
  const auto convolved = [&](size_t columns) {
    const ValueId y = graph.convolve(product(columns), weights.vector("factors", 4 * columns),
                                     weights.vector("bias", columns));
    return graph.activation(ActivationFunction::kSilu, y);
  };
  const ValueId input = convolved(wide);
  const ValueId b = convolved(shape.key_heads * dimension);
  const ValueId c = convolved(shape.key_heads * dimension);
  const auto factors = [&](const char* kind) { return weights.vector(kind, shape.value_heads); };
  const ValueId y = graph.scan(input, c, b, product(shape.value_heads), factors("decay"),
                               factors("bias"), factors("skip"), shape);
  const ValueId gated = graph.gate(ActivationFunction::kSilu, product(wide), y);
  const WeightId norm = weights.vector("norm", wide);
  const ValueId normed = shape.key_heads == 1
                             ? graph.rms_norm(gated, norm, 1e-5F)
                             : graph.head_norm(gated, norm, 1e-5F, shape.key_heads);
  x = graph.add(x, graph.matmul(seed == 5 ? gated : normed, weights.matrix(kColumns, wide)));
  const ValueId last =
      graph.rms_norm(graph.select_rows(x), weights.vector("norm", kColumns), 1e-5F);
  graph.set_logits(graph.matmul(last, table));
  return graph;
}

// By seed: how many heads of one column there are, their rows, whether these decay by themselves or
// together, whether factors are normed, and the format of all matrices.
Graph graph_with_column_scan(uint64_t seed) {
  constexpr size_t kColumns = 96;
  const size_t wide = std::array<size_t, 3>{160, 192, 32}[seed % 3];
  const size_t dimension = seed % 4 == 3 ? 41 : 16;
  const size_t decays = seed == 4 ? 1 : dimension;
  Graph graph;
  const SeededWeights weights(graph, seed);
  const WeightId table = weights.matrix(kVocabulary, kColumns);
  ValueId x = graph.embed(table);
  const ValueId h = graph.rms_norm(x, weights.vector("norm", kColumns), 1e-5F);
  const auto product = [&](ValueId y, size_t rows) {
    return graph.matmul(y, weights.matrix(rows, graph.columns(y)));
  };
  const ValueId sums = graph.convolve(product(h, wide), weights.vector("factors", 4 * wide),
                                      weights.vector("bias", wide));
  const ValueId scanned = graph.activation(ActivationFunction::kSilu, sums);
  const auto factors = [&](size_t columns) {
    const ValueId y = product(scanned, columns);
    return seed % 2 == 0 ? y : graph.rms_norm(y, weights.vector("norm", columns), 1e-5F);
  };
  const ValueId steps = product(factors(32), wide);
  const ValueId b = factors(dimension);
  const ValueId c = factors(dimension);
  const ValueId y = graph.scan(scanned, c, b, steps, weights.vector("decay", wide * decays),
                               weights.vector("bias", wide), weights.vector("skip", wide),
                               {.value_heads = wide, .key_heads = 1});
  const ValueId gated = graph.gate(ActivationFunction::kSilu, product(h, wide), y);
  x = graph.add(x, product(gated, kColumns));
  const ValueId last =
      graph.rms_norm(graph.select_rows(x), weights.vector("norm", kColumns), 1e-5F);
  graph.set_logits(graph.matmul(last, table));
  return graph;
}

template <typename Check>
void for_each_graph_with_states(Check check) {
  const std::vector<std::pair<const char*, Graph (*)(uint64_t)>> makers = {
      {"convolutions", graph_with_states},
      {"delta net", graph_with_delta_net},
      {"delta net of row decays", graph_with_row_decays},
      {"scan", graph_with_scan},
      {"scan of columns", graph_with_column_scan}};
  for (const auto& [name, make] : makers) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      SCOPED_TRACE(fmt::format("{} seed {}", name, seed));
      check(RandomGraphFile(seed, make));
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(States, give_what_float64_computes_of_the_whole_text_on_every_instruction_set) {
  for_each_graph_with_states(expect_what_float64_computes);
}

// Two sequences in turns, in slots that others have had, and a third one that begins meanwhile.
void expect_among_others(LoadedModel& model, const LogitRows& expected,
                         std::span<const TokenId> tokens) {
  model.compute_alone(some_tokens(40, 9), 128);  // in the slot that the next one gets
  auto mine = model.new_sequence(tokens.size());
  auto other = model.new_sequence(80);
  const auto others = some_tokens(80, 7);
  const std::span<const TokenId> all = others;
  size_t done = 0;
  size_t other_done = 0;
  for (const size_t count : {1U, 4U, 1U, 1U, 17U, 2U, 30U}) {
    const auto other_tokens = all.subspan(other_done, 3 + count);
    const std::vector<LoadedModel::Piece> pieces = {{other, other_tokens},
                                                    {mine, tokens.subspan(done, count)}};
    const LogitRows rows = model.compute(pieces);
    const auto begin = expected.begin() + static_cast<ptrdiff_t>(done);
    expect_same_bits(LogitRows(begin, begin + static_cast<ptrdiff_t>(count)),
                     LogitRows(rows.end() - static_cast<ptrdiff_t>(count), rows.end()));
    done += count;
    other_done += other_tokens.size();
  }
  model.give_back(other);
  model.give_back(mine);
}

TEST(States, have_the_same_bits_for_any_ranks_shares_workers_pieces_and_neighbours) {
  const auto tokens = some_tokens(56, 2);
  for_each_graph_with_states([&](const RandomGraphFile& file) {
    const LogitRows expected =
        LoadedModel(file.path(), file.model(), {}).compute_alone(tokens, 128);
    size_t turn = 0;
    for (const std::vector<double>& shares :
         {std::vector<double>{1}, {1, 1}, {3, 1}, {2, 1, 1}, {1, 5}, {1, 1, 1, 1}}) {
      SCOPED_TRACE(fmt::format("shares {}", fmt::join(shares, ":")));
      LoadedModelOptions options{.workers = 1 + turn % 3, .shares = shares};
      if (turn++ % 2 == 1) options.without_fusion.add_all();
      LoadedModel model(file.path(), file.model(), options);
      for (const size_t chunk : {128U, 7U, 2U, 1U}) {
        expect_same_bits(expected, model.compute_alone(tokens, chunk));
      }
      expect_among_others(model, expected, tokens);
    }
  });
}

// A state that began anywhere but at the sequence's first token is another: the test above can
// fail.
TEST(States, hold_what_the_tokens_before_have_left) {
  const auto tokens = some_tokens(20, 2);
  for_each_graph_with_states([&](const RandomGraphFile& file) {
    LoadedModel model(file.path(), file.model(), {});
    const LogitRows expected = model.compute_alone(tokens, 128);
    auto mine = model.new_sequence(tokens.size());
    model.compute(std::vector<LoadedModel::Piece>{{mine, std::span(tokens).first(10)}});
    auto other = mine;
    other.state = mine.state + 1;  // which holds nothing of these tokens
    const LogitRows rows =
        model.compute(std::vector<LoadedModel::Piece>{{other, std::span(tokens).subspan(10)}});
    EXPECT_NE(rows.front(), expected[10]);
  });
}

// Copies are made in their order, on every rank, whatever the slots have held: a state goes by way
// of a slot that is written over in the same pass, and comes to one that has held another.
TEST(States, that_are_copied_are_gone_on_from_with_the_same_bits) {
  const auto tokens = some_tokens(40, 2);
  const std::span<const TokenId> all = tokens;
  for_each_graph_with_states([&](const RandomGraphFile& file) {
    const LogitRows expected =
        LoadedModel(file.path(), file.model(), {}).compute_alone(tokens, 128);
    size_t workers = 1;
    for (const std::vector<double>& shares : {std::vector<double>{1}, {1, 1}, {3, 1}, {1, 5}}) {
      SCOPED_TRACE(fmt::format("shares {}", fmt::join(shares, ":")));
      LoadedModel model(file.path(), file.model(), {.workers = workers++, .shares = shares});
      auto mine = model.new_sequence(tokens.size());
      auto other = model.new_sequence(20);
      for (const auto& [begin, end] : {std::pair(0, 13), {13, 20}, {20, 21}, {21, 40}}) {
        const auto part = all.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
        const LogitRows rows = model.compute(std::vector<LoadedModel::Piece>{
            {mine, part}, {other, std::span<const TokenId>(part).first(1)}});
        const auto first = expected.begin() + begin;
        expect_same_bits(LogitRows(first, first + (end - begin)),
                         LogitRows(rows.begin(), rows.end() - 1));
        model.copy_state(mine.state, 100);
        model.copy_state(100, static_cast<uint32_t>(50 + end));
        model.copy_state(other.state, 100);
        model.copy_state(other.state, mine.state);
        mine.state = static_cast<uint32_t>(50 + end);
      }
    }
  });
}

// States that are kept within a pass, behind any of its tokens and beside another sequence's, are
// those of a pass that ends there; and the pass goes on with the same bits.
TEST(States, that_are_kept_within_a_pass_are_gone_on_from_with_the_same_bits) {
  constexpr std::array<uint32_t, 7> kKept = {0, 1, 6, 15, 16, 29, 36};  // of each piece
  constexpr uint32_t kEach = 37;
  struct Text {
    std::vector<TokenId> tokens;
    uint32_t begin = 0;  // of its piece
    LogitRows expected = {};

    LogitRows expected_rows(size_t first, size_t count) const {
      const auto rows = expected.begin() + static_cast<ptrdiff_t>(first);
      return {rows, rows + static_cast<ptrdiff_t>(count)};
    }
  };
  std::array<Text, 2> texts = {Text{some_tokens(40, 2), 0}, Text{some_tokens(45, 3), 5}};
  for_each_graph_with_states([&](const RandomGraphFile& file) {
    for (Text& text : texts) {
      text.expected = LoadedModel(file.path(), file.model(), {}).compute_alone(text.tokens, 128);
    }
    size_t workers = 1;
    for (const std::vector<double>& shares : {std::vector<double>{1}, {1, 1}, {3, 1}, {1, 5}}) {
      SCOPED_TRACE(fmt::format("shares {}", fmt::join(shares, ":")));
      LoadedModel model(file.path(), file.model(), {.workers = workers++, .shares = shares});
      std::array sequences = {model.new_sequence(40), model.new_sequence(45)};
      const auto piece = [&](size_t text, size_t begin, size_t count) {
        const std::span<const TokenId> tokens = texts[text].tokens;
        return LoadedModel::Piece{sequences[text], tokens.subspan(begin, count)};
      };
      model.compute(std::vector{piece(1, 0, texts[1].begin)});
      uint32_t slot = 20;
      for (const uint32_t text : {0U, 1U}) {
        for (const uint32_t token : kKept) model.keep_state(text * kEach + token, slot++);
      }
      const LogitRows rows = model.compute(
          std::vector{piece(0, texts[0].begin, kEach), piece(1, texts[1].begin, kEach)});
      slot = 20;
      for (const size_t text : {0U, 1U}) {
        const auto first = rows.begin() + static_cast<ptrdiff_t>(text * kEach);
        expect_same_bits(texts[text].expected_rows(texts[text].begin, kEach),
                         LogitRows(first, first + kEach));
        for (const uint32_t token : kKept) {
          SCOPED_TRACE(fmt::format("slot {} behind token {} of text {}", slot, token, text));
          const size_t begin = texts[text].begin + token + 1;
          const size_t count = texts[text].tokens.size() - begin;
          sequences[text].state = slot++;
          sequences[text].length = begin;
          expect_same_bits(texts[text].expected_rows(begin, count),
                           model.compute(std::vector{piece(text, begin, count)}));
        }
      }
    }
  });
}

// The bytes of a slot: rows are an odd number of cache lines apart, as activations' are.
size_t expected_slot_bytes(const Graph& graph, const Split& split, size_t rank) {
  size_t bytes = 0;
  for (const GraphNode& node : graph.nodes()) {
    if (!has_state(node)) continue;
    const size_t columns = split.values[node.output].columns[rank].size();
    if (columns == 0) continue;
    bytes += (node.taps - 1) * (activation_stride(columns) | 16U) * sizeof(float);
  }
  return bytes;
}

TEST(States, of_a_rank_are_those_of_its_columns_and_are_counted) {
  const Graph graph = graph_with_states(1);
  EXPECT_TRUE(graph.has_states());
  for (const std::vector<double>& shares : {std::vector<double>{1}, {1, 1}, {3, 1}, {1, 1, 1}}) {
    SCOPED_TRACE(fmt::format("shares {}", fmt::join(shares, ":")));
    const Split split = value_or_throw(split_graph(graph, shares, Strategy::kGather));
    for (size_t rank = 0; rank < shares.size(); ++rank) {
      PlanOptions options{.batch_tokens = 32, .kv_pages = 4, .state_slots = 5};
      const Plan plan = make_plan(graph, split, rank, options);
      EXPECT_EQ(plan.states.slot_count, 5U);
      EXPECT_EQ(plan.states.slot_bytes, expected_slot_bytes(graph, split, rank));
      options.state_slots = 6;
      const Plan more = make_plan(graph, split, rank, options);
      EXPECT_EQ(more.scratch_bytes - plan.scratch_bytes, plan.states.slot_bytes);
      EXPECT_EQ(more.states.size_bytes(), 6 * plan.states.slot_bytes);
    }
  }
}

TEST(States, are_what_gpus_lack_and_the_gap_names_them) {
  const auto gap = find_gpu_gap(graph_with_states(0), {});
  ASSERT_TRUE(gap.has_value());
  EXPECT_EQ(*gap, "causal convolution");
}

}  // namespace
}  // namespace lockstep
