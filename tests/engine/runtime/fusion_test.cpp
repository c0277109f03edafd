// No fusion rule changes a bit: with any of them switched off, a model's logits and hidden rows are
// those of the fused plan, for every architecture, however the work is split.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/random_family.h"
#include "tests/engine/runtime/random_model.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

struct RuleSet {
  std::string name;
  FusionSet without;
};

// All rules, each by itself, and some at random.
std::vector<RuleSet> rule_sets(uint64_t seed) {
  std::vector<RuleSet> sets(1);
  sets[0].name = "all";
  sets[0].without.add_all();
  for (const FusionRule& rule : fusion_rules()) {
    sets.push_back({std::string(rule.name), {}});
    sets.back().without.add(rule.fusion);
  }
  std::mt19937_64 random(seed);
  for (size_t count = 0; count < 4; ++count) {
    RuleSet& set = sets.emplace_back();
    for (const FusionRule& rule : fusion_rules()) {
      if (random() % 2 == 0) continue;
      set.without.add(rule.fusion);
      set.name += std::string(rule.name) + " ";
    }
  }
  return sets;
}

struct Answer {
  LogitRows prompted;
  LogitRows generated;
  std::vector<float> hidden;
};

// A prompt in chunks, among neighbours, and then tokens that are generated.
Answer answer_of(const std::string& path, const LoadedModelOptions& options) {
  LoadedModel model(path, options);
  const auto tokens = some_tokens(45, 2);
  const auto others = some_tokens(9, 5);
  auto before = model.new_sequence(12);
  auto mine = model.new_sequence(tokens.size());
  Answer answer;
  const auto add = [&](size_t first, size_t count) {
    for (auto& row : model.compute(
             std::vector<LoadedModel::Piece>{{mine, std::span(tokens).subspan(first, count)}})) {
      answer.prompted.push_back(std::move(row));
    }
  };
  answer.prompted = model.compute(
      std::vector<LoadedModel::Piece>{{before, others}, {mine, std::span(tokens).first(7)}});
  add(7, 33);
  answer.hidden = model.hidden_row(3);
  for (size_t token = 40; token < tokens.size(); ++token) {
    const std::vector<LoadedModel::Piece> pieces = {{mine, std::span(tokens).subspan(token, 1)}};
    answer.generated.push_back(model.compute(pieces, 1).front());
  }
  return answer;
}

void expect_same(const Answer& a, const Answer& b) {
  expect_same_bits(a.prompted, b.prompted);
  expect_same_bits(a.generated, b.generated);
  expect_same_bits({a.hidden}, {b.hidden});
}

void expect_same_without(const std::string& path, const LoadedModelOptions& fused,
                         const std::vector<RuleSet>& sets) {
  const Answer expected = answer_of(path, fused);
  for (const RuleSet& set : sets) {
    SCOPED_TRACE("without " + set.name);
    LoadedModelOptions options = fused;
    options.without_fusion = set.without;
    expect_same(expected, answer_of(path, options));
  }
}

const std::vector<std::vector<double>> kShares = {{1}, {1, 1}, {2, 1, 1}, {1, 1, 1, 1}};

// All rules at once, and in turns one of the other sets.
std::vector<RuleSet> some_rule_sets(uint64_t seed, size_t turn) {
  const std::vector<RuleSet> sets = rule_sets(seed);
  return {sets.front(), sets[1 + turn % (sets.size() - 1)]};
}

// All sets for a dense model and a mixture; of the others, which differ from these in their nodes
// alone, some.
TEST(Fusion, changes_no_bit_of_any_architecture) {
  constexpr uint64_t kSeed = 20;
  size_t turn = 0;
  for (const std::string_view name : random_families()) {
    const FamilyFile file = family_file(name);
    const RandomFamily model(file, kSeed);
    const bool has_all = name == "qwen3" || name == "qwen3moe";
    // The widest of them takes its time.
    const bool is_deep = file.layers > 8;
    for (const Strategy strategy : {Strategy::kGather, Strategy::kReduce}) {
      for (const std::vector<double>& shares : kShares) {
        if (is_deep && shares.size() != 3) continue;
        SCOPED_TRACE(fmt::format("{} {} shares {} seed {}", name, strategy_name(strategy),
                                 fmt::join(shares, ":"), kSeed));
        LoadedModelOptions options{.workers = 2, .shares = shares, .strategy = strategy};
        options.profile = shares.size() % 2 == 0 ? Profile::kExact : Profile::kFast;
        const uint64_t seed = kSeed + shares.size();
        expect_same_without(model.path(), options,
                            has_all ? rule_sets(seed) : some_rule_sets(seed, turn++));
      }
    }
  }
}

// Blocks that heads cut, sums that travel as bf16, mixtures of several formats.
TEST(Fusion, changes_no_bit_of_any_format) {
  std::vector<std::unique_ptr<RandomModel>> models;
  const auto add = [&](Format format, Format others, RandomModel::Experts experts) {
    models.push_back(std::make_unique<RandomModel>(format, others, /*seed=*/11, experts));
  };
  add(Format::kQ4_K, Format::kQ6_K, {});
  add(Format::kBf16, Format::kF16, {});
  add(Format::kQ8_0, Format::kF32, {.count = 5, .used = 2});
  add(Format::kQ4_0, Format::kQ4_0, {.count = 7, .used = 3});
  for (const auto& model : models) {
    for (const Strategy strategy : {Strategy::kGather, Strategy::kReduce}) {
      for (const bool bf16 : {false, true}) {
        if (bf16 && strategy == Strategy::kGather) continue;
        SCOPED_TRACE(fmt::format("{} {} bf16 {}", model->path(), strategy_name(strategy), bf16));
        LoadedModelOptions options{.workers = 2, .shares = {2, 1}, .strategy = strategy};
        options.bf16_sums = bf16;
        expect_same_without(model->path(), options, rule_sets(7));
      }
    }
  }
}

std::string fixture(const std::string& name) {
  return source_dir() + "/tests/fixtures/families/" + name + ".gguf";
}

// Layers with states, key heads in turns and in groups.
TEST(Fusion, changes_no_bit_of_delta_nets) {
  for (const char* name : {"qwen35", "qwen3next", "qwen3next-old"}) {
    for (const std::vector<double>& shares : kShares) {
      SCOPED_TRACE(fmt::format("{} shares {}", name, fmt::join(shares, ":")));
      LoadedModelOptions options{.workers = 2, .shares = shares};
      options.profile = shares.size() % 2 == 0 ? Profile::kExact : Profile::kFast;
      expect_same_without(fixture(name), options, rule_sets(shares.size()));
    }
  }
}

// A rule that is on joins something: else the tests above would show nothing. No architecture has
// an activation that gates nothing.
TEST(Fusion, leaves_more_steps_where_a_rule_is_off) {
  const RandomFamily dense(family_file("qwen3"), 3);
  const RandomFamily mixture(family_file("qwen3moe"), 3);
  for (const FusionRule& rule : fusion_rules()) {
    const std::string name(rule.name);
    if (rule.fusion == Fusion::kActivation) continue;
    std::string path = name.starts_with("mixture") ? mixture.path() : dense.path();
    const bool is_of_states =
        rule.fusion == Fusion::kConvolutions || rule.fusion == Fusion::kDeltaNet;
    if (is_of_states) path = fixture("qwen35");
    LoadedModelOptions options;
    const size_t fused = LoadedModel(path, options).plan().steps.size();
    options.without_fusion.add(rule.fusion);
    EXPECT_GT(LoadedModel(path, options).plan().steps.size(), fused) << name;
  }
}

}  // namespace
}  // namespace lockstep
