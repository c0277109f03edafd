// Whole layers by rank, for the fixtures of every architecture: each weight is held where it is
// used and nowhere else, memory adds up to that of one rank, and no bit depends on the borders.
#include "engine/planner/layer_split.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/base/checked_math.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/random_graph.h"
#include "tests/engine/runtime/value_or_throw.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

// In order, so that a turn of borders is the same in every run.
std::vector<std::string> fixtures() {
  std::vector<std::string> paths;
  for (const char* const folder : {"families", "encoders"}) {
    const std::string all = source_dir() + "/tests/fixtures/" + folder;
    for (const auto& entry : std::filesystem::directory_iterator(all)) {
      if (entry.path().extension() == ".gguf") paths.push_back(entry.path().string());
    }
  }
  std::ranges::sort(paths);
  return paths;
}

Model model_of(const std::string& path) {
  const GgufFile file = value_or_throw(GgufFile::open(path));
  return value_or_throw(build_model({.file = file}));
}

template <typename Check>
void for_each_fixture(Check check) {
  size_t turn = 0;
  for (const std::string& path : fixtures()) {
    SCOPED_TRACE(path);
    check(path, model_of(path).graph, turn++);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Each border alone, and as many as leave every rank a product.
std::vector<std::vector<LayerBorder>> choices_of(const Graph& graph) {
  std::vector<std::vector<LayerBorder>> choices;
  for (const LayerBorder& border : find_layer_borders(graph)) choices.push_back({border});
  for (size_t ranks = 3;; ++ranks) {
    const auto split = split_layers(graph, std::vector<double>(ranks, 1.0));
    if (!split) break;
    choices.push_back(split->borders);
  }
  return choices;
}

// A value that a node behind the border reads of those before: keys and values that an earlier
// layer has stored among them.
std::set<ValueId> read_across(const Graph& graph, size_t border) {
  std::set<ValueId> values;
  for (size_t node = border; node < graph.nodes().size(); ++node) {
    for (const ValueId input : graph.nodes()[node].inputs) {
      if (input < border) values.insert(input);
    }
    const ValueId stored_by = graph.nodes()[node].stored_by;
    if (stored_by != kNone && stored_by < border) values.insert(stored_by);
  }
  return values;
}

TEST(LayerSplit, borders_are_where_one_value_of_all_tokens_is_read_across) {
  for_each_fixture([](const std::string&, const Graph& graph, size_t) {
    std::map<size_t, ValueId> borders;
    for (const LayerBorder& each : find_layer_borders(graph)) borders[each.node] = each.residual;
    for (size_t node = 1; node < graph.nodes().size(); ++node) {
      const std::set<ValueId> values = read_across(graph, node);
      const auto found = borders.find(node);
      if (found != borders.end()) {
        EXPECT_EQ(values, std::set<ValueId>{found->second}) << node;
        continue;
      }
      // A sum is a residual.
      const bool is_sum = values.size() == 1 &&
                          graph.producer(*values.begin()).operation == Operation::kAdd &&
                          graph.rows(*values.begin()) == Rows::kTokens;
      EXPECT_FALSE(is_sum) << node;
    }
  });
}

// The weights that a node reads, by what the operations' nodes have of them.
std::set<WeightId> weights_of(const GraphNode& node) {
  std::set<WeightId> weights = {node.weight, node.bias, node.skip, node.attention.sinks};
  weights.insert(node.experts.begin(), node.experts.end());
  weights.insert(node.biases.begin(), node.biases.end());
  weights.erase(kNone);
  return weights;
}

// The ranks that use each weight.
std::vector<std::set<size_t>> users_of(const Graph& graph, const Split& split) {
  std::vector<std::set<size_t>> users(graph.weights().size());
  for (const GraphNode& node : graph.nodes()) {
    for (const WeightId id : weights_of(node)) users[id].insert(split.owners[node.output]);
  }
  return users;
}

void expect_weights_where_they_are_used(const Graph& graph,
                                        const std::vector<std::set<size_t>>& users,
                                        const std::vector<Plan>& plans) {
  for (WeightId id = 0; id < graph.weights().size(); ++id) {
    const Weight& weight = graph.weights()[id];
    for (const Plan& plan : plans) {
      const WeightSlice& slice = plan.weights[id];
      if (!users[id].contains(plan.rank)) {
        EXPECT_EQ(slice.size_bytes, 0U) << weight.name << " on rank " << plan.rank;
        continue;
      }
      EXPECT_EQ(slice.row_end - slice.row_begin, weight.rows) << weight.name;
      EXPECT_EQ(slice.column_end - slice.column_begin, weight.columns) << weight.name;
    }
  }
}

// The bytes of all ranks.
struct HeldBytes {
  size_t weights = 0;
  size_t pages = 0;
  size_t states = 0;
};

void expect_memory_adds_up(const std::vector<std::set<size_t>>& users,
                           const std::vector<Plan>& plans, const Plan& alone) {
  HeldBytes held;
  for (const Plan& plan : plans) {
    held.weights += plan.weight_bytes;
    held.pages += plan.kv.page_bytes();
    held.states += plan.states.slot_bytes;
  }
  size_t twice = 0;
  for (WeightId id = 0; id < users.size(); ++id) {
    ASSERT_GE(users[id].size(), 1U);
    const size_t bytes =
        round_up<size_t>(alone.weights[id].size_bytes, node_plan_target().weight_alignment());
    twice += (users[id].size() - 1) * bytes;
  }
  EXPECT_EQ(held.weights, alone.weight_bytes + twice);
  EXPECT_EQ(held.states, alone.states.slot_bytes);
  // A page of several groups is as large as the largest one, on each rank by itself.
  if (alone.kv.group_count() == 1) {
    EXPECT_EQ(held.pages, alone.kv.page_bytes());
  } else {
    EXPECT_GE(held.pages, alone.kv.page_bytes());
  }
}

TEST(LayerSplit, weights_lie_where_they_are_used_and_memory_adds_up) {
  const PlanOptions options{.batch_tokens = 16, .logit_rows = 4, .kv_pages = 3};
  size_t splits = 0;
  size_t shared = 0;
  for_each_fixture([&](const std::string&, const Graph& graph, size_t) {
    const Plan alone = make_plan(graph, split_at_borders(graph, {}), 0, options);
    for (const std::vector<LayerBorder>& borders : choices_of(graph)) {
      const Split split = split_at_borders(graph, borders);
      std::vector<Plan> plans;
      for (size_t rank = 0; rank < split.rank_count; ++rank) {
        plans.push_back(make_plan(graph, split, rank, options));
      }
      const auto users = users_of(graph, split);
      expect_weights_where_they_are_used(graph, users, plans);
      expect_memory_adds_up(users, plans, alone);
      size_t weights = 0;
      for (const Plan& plan : plans) weights += plan.weight_bytes;
      shared += weights > alone.weight_bytes ? 1 : 0;
      ++splits;
    }
  });
  EXPECT_GT(splits, 300U);
  EXPECT_GT(shared, 0U);  // matrices that are embedding and output
}

// Steps that no rank but the border's two has work in, and whose barriers all ranks pass.
TEST(LayerSplit, ranks_meet_at_borders_alone) {
  const PlanOptions options{.batch_tokens = 16, .logit_rows = 4, .kv_pages = 3};
  for_each_fixture([&](const std::string&, const Graph& graph, size_t) {
    for (const std::vector<LayerBorder>& borders : choices_of(graph)) {
      const Split split = split_at_borders(graph, borders);
      for (size_t rank = 0; rank < split.rank_count; ++rank) {
        const Plan plan = make_plan(graph, split, rank, options);
        size_t met = 0;
        for (const Step& step : plan.steps) {
          if (step.meet != Meet::kAllRanks) continue;
          const auto* const hand_over = std::get_if<HandOverStep>(&step.work);
          ASSERT_NE(hand_over, nullptr) << step_text(step.work);
          EXPECT_EQ(hand_over->taker + 1, hand_over->giver);
          EXPECT_EQ(hand_over->giver, split.rank_count - 1 - met);
          EXPECT_EQ(static_cast<bool>(hand_over->input), hand_over->giver == rank);
          ++met;
        }
        EXPECT_EQ(met, borders.size());
      }
    }
  });
}

struct Computed {
  LogitRows rows;
  LogitRows hidden;
};

// A prompt in two chunks, the second beside another sequence's, and then generated tokens. An
// encoder's sequences are one pass's each.
Computed compute_all(const std::string& path, const LoadedModelOptions& options) {
  LoadedModel model(path, options);
  const auto tokens = some_tokens(45, 2);
  const std::span<const TokenId> all = tokens;
  auto first = model.new_sequence(tokens.size());
  auto second = model.new_sequence(tokens.size());
  Computed answer;
  const auto compute = [&](const std::vector<LoadedModel::Piece>& pieces, size_t generated) {
    LogitRows rows = model.compute(pieces, generated);
    answer.rows.insert(answer.rows.end(), rows.begin(), rows.end());
    if (model.plan().hidden.width > 0) answer.hidden.push_back(model.hidden_row(1));
  };
  if (model.model().graph.sees_ahead()) {
    compute({{first, all.first(30)}, {second, all.last(12)}}, 0);
    return answer;
  }
  compute({{first, all.first(30)}}, 0);
  compute({{first, all.subspan(30, 9)}, {second, all.last(12)}}, 0);
  for (size_t token = 39; token < tokens.size(); token += 2) {
    compute({{first, all.subspan(token, 2)}, {second, all.subspan(token - 20, 2)}}, 2);
  }
  return answer;
}

void expect_same(const Computed& expected, const Computed& answer) {
  expect_same_bits(expected.rows, answer.rows);
  expect_same_bits(expected.hidden, answer.hidden);
}

TEST(LayerSplit, gives_the_bits_of_one_rank_for_any_borders) {
  size_t with_borders = 0;
  for_each_fixture([&](const std::string& path, const Graph& graph, size_t turn) {
    const std::vector<std::vector<LayerBorder>> choices = choices_of(graph);
    if (choices.empty()) return;
    ++with_borders;
    LoadedModelOptions options{.workers = 1 + turn % 2};
    options.profile = turn % 3 == 0 ? Profile::kExact : Profile::kFast;
    const Computed expected = compute_all(path, options);
    options.borders = choices.back();
    expect_same(expected, compute_all(path, options));
    options.borders = choices[turn % choices.size()];
    if (turn % 4 == 0) options.without_fusion.add_all();
    expect_same(expected, compute_all(path, options));
  });
  EXPECT_GT(with_borders, 50U);
}

// Shares decide which layers ranks have: the more, the more layers.
TEST(LayerSplit, shares_decide_the_borders) {
  const Graph graph = model_of(source_dir() + "/tests/fixtures/families/arcee.gguf").graph;
  const auto bytes_of = [&](const std::vector<double>& shares) {
    std::vector<size_t> bytes;
    const Split split = value_or_throw(split_layers(graph, shares));
    for (size_t rank = 0; rank < shares.size(); ++rank) {
      const PlanOptions options{.batch_tokens = 16, .logit_rows = 4, .kv_pages = 3};
      bytes.push_back(make_plan(graph, split, rank, options).weight_bytes);
    }
    return bytes;
  };
  EXPECT_LT(bytes_of({1, 6})[0], bytes_of({6, 1})[0]);
  EXPECT_GT(bytes_of({1, 6})[1], bytes_of({6, 1})[1]);
}

TEST(LayerSplit, refuses_what_cannot_be_cut_and_says_what_to_do) {
  const Graph graph = model_of(source_dir() + "/tests/fixtures/families/arcee.gguf").graph;
  const auto too_many = split_layers(graph, std::vector<double>(60, 1.0));
  ASSERT_FALSE(too_many.has_value());
  EXPECT_NE(too_many.error().message.find("60 ranks are more than"), std::string::npos)
      << too_many.error().message;
  const auto none = split_layers(graph, std::vector<double>{1, 0});
  ASSERT_FALSE(none.has_value());
  EXPECT_NE(none.error().message.find("rank 1 of 2 would have no layers"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
