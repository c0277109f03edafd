// Each family's logits against those of transformers and of llama.cpp for the same file, and their
// bits however the work is cut. The fixtures are made by scripts/models/make_family_fixtures.py.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/kernels/kernel_choice.h"
#include "engine/planner/gpu_gap.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/quantized_copy.h"
#include "tests/engine/runtime/random_family.h"
#include "tests/engine/runtime/reference_model.h"
#include "tests/paths.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

const std::string kFamiliesFolder = source_dir() + "/tests/fixtures/families/";

nlohmann::json family_models() {
  std::ifstream file(kFamiliesFolder + "index.json");
  return nlohmann::json::parse(file).at("models");
}

// All engines compute in f32 in different orders, in units of the logits' spread: what
// make_family_fixtures.py finds between transformers and llama.cpp is up to 1e-5, most of it from
// llama.cpp's angles, which are f32; of a model of 64 layers 2e-5. In Q8_0, for which llama.cpp
// rounds activations to 8 bits, it finds 0.07.
double tolerance_of(const nlohmann::json& model) {
  if (model.at("format") != "F32") return 0.1;
  const double found = model.value("/llama_cpp/difference"_json_pointer, 0.0);
  return std::max(5e-5, 5 * found);
}

LoadedModelOptions options_of(const nlohmann::json& model) {
  return {.context_tokens = model.value("context", size_t{0})};
}

double worst_difference_from(const LogitRows& rows, size_t first_row,
                             const std::vector<float>& expected) {
  const size_t vocabulary = rows[0].size();
  EXPECT_EQ(expected.size(), (rows.size() - first_row) * vocabulary);
  double worst = 0;
  for (size_t index = 0; index < expected.size(); ++index) {
    const float logit = rows.at(first_row + index / vocabulary)[index % vocabulary];
    EXPECT_TRUE(std::isfinite(logit));
    worst = std::max(worst, std::abs(static_cast<double>(logit) - expected[index]));
  }
  return worst;
}

TEST(Families, have_the_logits_of_transformers_and_of_llama_cpp_on_every_instruction_set) {
  for (const auto& model : family_models()) {
    const double tolerance = tolerance_of(model) * model.at("spread").get<double>();
    for (const KernelTable* table : supported_kernel_tables()) {
      SCOPED_TRACE(model.at("name").get<std::string>() + " " + std::string(table->name));
      LoadedModelOptions options = options_of(model);
      options.kernels = table;
      LoadedModel loaded(kFamiliesFolder + model.at("file").get<std::string>(), options);
      LogitRows rows;
      size_t first_row = 0;
      for (const auto& sequence : model.at("sequences")) {
        rows = loaded.compute_alone(sequence.at("tokens").get<std::vector<TokenId>>(), 128);
        first_row = sequence.at("first_row").get<size_t>();
        const auto expected =
            read_floats(kFamiliesFolder + sequence.at("logits").get<std::string>());
        EXPECT_LT(worst_difference_from(rows, first_row, expected), tolerance) << rows.size();
      }
      if (!model.contains("llama_cpp")) continue;
      const auto expected =
          read_floats(kFamiliesFolder + model["llama_cpp"].at("logits").get<std::string>());
      EXPECT_LT(worst_difference_from(rows, first_row, expected), tolerance) << "llama.cpp";
    }
  }
}

// The root of the mean square of what differs.
double usual_difference(const LogitRows& rows, size_t first_row, std::span<const float> expected) {
  const size_t vocabulary = rows[0].size();
  EXPECT_EQ(expected.size(), (rows.size() - first_row) * vocabulary);
  double sum = 0;
  for (size_t index = 0; index < expected.size(); ++index) {
    const float logit = rows.at(first_row + index / vocabulary)[index % vocabulary];
    sum += std::pow(static_cast<double>(logit) - expected[index], 2);
  }
  return std::sqrt(sum / static_cast<double>(expected.size()));
}

// Float64 over the weights of a copy in Q8_0 gives the logits of transformers over the same
// weights, and the engine is as near to it as the roundings of its activations let it be.
// llama.cpp's are rounded otherwise: of logits that have nothing in common the difference would
// be 1.4.
TEST(Families, have_the_logits_of_transformers_and_of_llama_cpp_in_q8_0) {
  const test::Folder folder;
  const std::string path = folder / "copy.gguf";
  for (const auto& model : family_models()) {
    if (!model.contains("q8_0")) continue;
    const auto& copy = model["q8_0"];
    write_quantized_copy(kFamiliesFolder + model.at("file").get<std::string>(), path);
    const auto& sequence = model.at("sequences")[1];
    const auto tokens = sequence.at("tokens").get<std::vector<TokenId>>();
    const auto first_row = sequence.at("first_row").get<size_t>();
    const auto spread = model.at("spread").get<double>();
    const std::vector<float> stored =
        read_floats(kFamiliesFolder + copy.at("logits").get<std::string>());
    const size_t count =
        sequence.at("row_count").get<size_t>() * model.at("vocabulary").get<size_t>();
    LoadedModelOptions options = options_of(model);
    const ReferenceModel reference(path, tokens, options.context_tokens);
    LogitRows exact;
    for (const auto& row : reference.logits()) exact.emplace_back(row.begin(), row.end());
    EXPECT_LT(
        worst_difference_from(exact, first_row,
                              {stored.begin(), stored.begin() + static_cast<ptrdiff_t>(count)}),
        tolerance_of(model) * spread)
        << model.at("name");
    for (const KernelTable* table : supported_kernel_tables()) {
      SCOPED_TRACE(model.at("name").get<std::string>() + " " + std::string(table->name));
      options.kernels = table;
      const LogitRows rows = LoadedModel(path, options).compute_alone(tokens, 128);
      expect_near(rows, reference, roundings_of(*table, Profile::kFast, KvFormat::kF32));
      if (!copy.contains("llama_cpp")) continue;
      const auto others = std::span(stored).subspan(count);
      EXPECT_LT(usual_difference(rows, first_row, others), 0.2 * spread) << "llama.cpp";
    }
  }
}

TEST(Families, have_a_copy_in_q8_0_for_every_architecture) {
  std::set<std::string> proven;
  const auto models = family_models();
  for (const auto& model : models) {
    if (model.contains("q8_0")) proven.insert(model.at("architecture"));
  }
  for (const auto& model : models) {
    EXPECT_TRUE(proven.contains(model.at("architecture"))) << model.at("architecture");
  }
}

TEST(Families, have_a_fixture_for_every_architecture) {
  std::set<std::string> proven = {"qwen3"};  // tests/fixtures/logits
  for (const auto& model : family_models()) proven.insert(model.at("architecture"));
  std::ifstream encoders(source_dir() + "/tests/fixtures/encoders/index.json");
  const auto index = nlohmann::json::parse(encoders);
  for (const auto& model : index.at("models")) proven.insert(model.at("architecture"));
  for (const Architecture& architecture : all_architectures()) {
    EXPECT_TRUE(proven.contains(std::string(architecture.name))) << architecture.name;
  }
}

// The architectures with a file that a GPU computes alone, and those with one that several do not,
// and why.
struct GpuFamilyNames {
  std::set<std::string> alone;
  std::map<std::string, std::string> not_by_several;
};
GpuFamilyNames families_of_gpus() {
  GpuFamilyNames names;
  for (const auto& each : family_models()) {
    const auto file = GgufFile::open(kFamiliesFolder + each.at("file").get<std::string>());
    EXPECT_TRUE(file.has_value()) << file.error().message;
    const auto model = build_model({.file = *file});
    EXPECT_TRUE(model.has_value()) << model.error().message;
    if (find_gpu_gap(model->graph, {}, /*alone=*/true)) continue;
    names.alone.insert(each.at("architecture"));
    const auto gap = find_gpu_gap(model->graph, {});
    if (gap) names.not_by_several.emplace(each.at("architecture"), *gap);
  }
  return names;
}

std::string paragraph_of_readme(const std::string& start) {
  std::ifstream file(source_dir() + "/README.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t at = text.find(start);
  EXPECT_NE(at, std::string::npos) << start;
  return at == std::string::npos ? "" : text.substr(at, text.find("\n\n", at) - at);
}

TEST(Families, are_computed_by_gpus_but_for_a_few) {
  const std::set<std::string> expected = {
      "deepseek32",     "falcon-h1", "glm-dsa", "granitehybrid", "jamba",    "kimi-linear",
      "lfm2",           "lfm2moe",   "mamba",   "mamba2",        "mistral4", "nemotron_h",
      "nemotron_h_moe", "plamo2",    "qwen35",  "qwen35moe",     "qwen3next"};
  const auto [alone, not_by_several] = families_of_gpus();
  std::set<std::string> others;
  for (const auto& each : family_models()) {
    const std::string name = each.at("architecture");
    if (!alone.contains(name)) others.insert(name);
  }
  EXPECT_EQ(others, expected);
  const std::string told = paragraph_of_readme("GPUs compute all of them but");
  for (const std::string& name : others) {
    EXPECT_NE(told.find('`' + name + '`'), std::string::npos) << name;
  }
  EXPECT_EQ(not_by_several, (std::map<std::string, std::string>()));
}

// As a prompt, in chunks, token by token, and among neighbours.
void expect_in_any_pieces(LoadedModel& loaded, const LogitRows& expected,
                          std::span<const TokenId> tokens) {
  expect_same_bits(expected, loaded.compute_alone(tokens, 128));
  expect_same_bits(expected, loaded.compute_alone(tokens, 7));
  const LogitRows first(expected.begin(), expected.begin() + 12);
  expect_same_bits(first, loaded.compute_alone(tokens.first(12), 1));
  const auto others = some_tokens(33, 4);
  auto before = loaded.new_sequence(33);
  auto mine = loaded.new_sequence(tokens.size());
  auto after = loaded.new_sequence(5);
  const std::vector<LoadedModel::Piece> pieces = {
      {before, others}, {mine, tokens}, {after, std::span(others).first(5)}};
  const LogitRows all = loaded.compute(pieces);
  expect_same_bits(expected, LogitRows(all.begin() + 33, all.end() - 5));
}

TEST(Families, have_the_same_bits_for_any_ranks_shares_workers_chunks_neighbours_and_fusions) {
  size_t turn = 0;
  const auto tokens = some_tokens(70, 2);
  const std::vector<std::vector<double>> splits = {{1}, {1, 1}, {3, 1}, {2, 1, 1}, {1, 1, 1, 1}};
  for (const auto& model : family_models()) {
    const std::string path = kFamiliesFolder + model.at("file").get<std::string>();
    const LogitRows expected = LoadedModel(path, options_of(model)).compute_alone(tokens, 128);
    for (const std::vector<double>& shares : splits) {
      SCOPED_TRACE(fmt::format("{}, shares {}", path, fmt::join(shares, ":")));
      LoadedModelOptions options = options_of(model);
      options.shares = shares;
      options.workers = 1 + turn % 3;
      if (turn++ % 2 == 1) options.without_fusion.add_all();
      LoadedModel loaded(path, options);
      expect_in_any_pieces(loaded, expected, tokens);
    }
  }
}

TEST(Families, have_the_same_bits_in_q8_0_for_any_ranks_shares_workers_and_chunks) {
  const test::Folder folder;
  const std::string path = folder / "copy.gguf";
  const auto tokens = some_tokens(40, 2);
  const std::vector<std::vector<double>> splits = {{1, 1}, {2, 1, 1}, {1, 1, 1, 1}};
  for (const auto& model : family_models()) {
    if (!model.contains("q8_0")) continue;
    write_quantized_copy(kFamiliesFolder + model.at("file").get<std::string>(), path);
    const LogitRows expected = LoadedModel(path, options_of(model)).compute_alone(tokens, 128);
    for (const std::vector<double>& shares : splits) {
      SCOPED_TRACE(fmt::format("{}, shares {}", model.at("name").get<std::string>(),
                               fmt::join(shares, ":")));
      LoadedModelOptions options = options_of(model);
      options.shares = shares;
      options.workers = shares.size() == 2 ? 3 : 1;
      LoadedModel loaded(path, options);
      expect_same_bits(expected, loaded.compute_alone(tokens, shares.size() == 3 ? 7 : 128));
    }
  }
}

// The fixtures are so narrow that one rank has all of a feed-forward. Here each rank has a part of
// every matrix, of tensors apart and fused; four ranks share three KV heads.
TEST(Families, are_the_model_where_every_rank_has_a_part_of_every_matrix) {
  const auto tokens = some_tokens(20, 5);
  const KernelTable& table = *choose_kernel_table(kernel_row()).value();
  const Roundings roundings =
      joined(roundings_of(table, Profile::kFast, KvFormat::kF32),
             roundings_of(table, Profile::kFast, KvFormat::kF32, /*generated=*/true));
  std::vector<FamilyFile> files = {{.value_dimension = 24}};
  for (const std::string_view name : random_families()) files.push_back(family_file(name));
  for (FamilyFile& file : files) {
    SCOPED_TRACE(file.architecture);
    file.fused = false;
    const RandomFamily apart(file, /*seed=*/74);
    file.fused = true;
    const RandomFamily fused(file, /*seed=*/74);
    const ReferenceModel reference(apart.path(), tokens);
    const double bound = reference.bound(roundings);
    const LogitRows expected = LoadedModel(apart.path(), {}).compute_alone(tokens, 128);
    EXPECT_LE(worst_difference(expected, reference.logits()), bound);
    for (const std::vector<double>& shares : {std::vector<double>{1, 1}, {2, 1, 1}, {1, 1, 1, 1}}) {
      SCOPED_TRACE(fmt::format("shares {}", fmt::join(shares, ":")));
      for (const std::string& path : {apart.path(), fused.path()}) {
        LoadedModel gathers(path, {.workers = 2, .shares = shares});
        expect_same_bits(expected, gathers.compute_alone(tokens, 7));
        LoadedModel reduces(path, {.shares = shares, .strategy = Strategy::kReduce});
        EXPECT_LE(worst_difference(reduces.compute_alone(tokens, 128), reference.logits()), bound);
      }
    }
  }
}

// Files whose matrices have scales (<...>.scale): apart, fused, with biases, of experts.
TEST(Families, are_the_model_where_matrices_have_scales) {
  const auto tokens = some_tokens(20, 5);
  const KernelTable& table = *choose_kernel_table(kernel_row()).value();
  const Roundings roundings =
      joined(roundings_of(table, Profile::kFast, KvFormat::kF32),
             roundings_of(table, Profile::kFast, KvFormat::kF32, /*generated=*/true));
  for (const char* const name : {"llama", "seed_oss", "pangu-embedded", "phi3", "qwen3moe"}) {
    for (const Format format : {Format::kF32, Format::kQ8_0}) {
      FamilyFile file = family_file(name);
      file.format = format;
      const RandomFamily without(file, /*seed=*/74);
      file.scales = true;
      const RandomFamily with(file, /*seed=*/74);
      const ReferenceModel reference(with.path(), tokens);
      const double bound = reference.bound(roundings);
      const LogitRows expected = LoadedModel(with.path(), {}).compute_alone(tokens, 128);
      EXPECT_LE(worst_difference(expected, reference.logits()), bound) << name;
      const LogitRows others = LoadedModel(without.path(), {}).compute_alone(tokens, 128);
      EXPECT_GT(worst_difference(others, reference.logits()), bound) << name;
      for (const std::vector<double>& shares :
           {std::vector<double>{1}, {1, 1}, {2, 1, 1}, {1, 1, 1, 1}}) {
        SCOPED_TRACE(
            fmt::format("{} {}, shares {}", name, traits(format).name, fmt::join(shares, ":")));
        LoadedModel gathers(with.path(), {.workers = 2, .shares = shares});
        expect_same_bits(expected, gathers.compute_alone(tokens, 7));
        LoadedModel reduces(with.path(), {.shares = shares, .strategy = Strategy::kReduce});
        EXPECT_LE(worst_difference(reduces.compute_alone(tokens, 128), reference.logits()), bound);
      }
    }
  }
}

TEST(Families, have_the_same_bits_whether_tensors_are_fused_or_apart) {
  const auto tokens = some_tokens(40, 3);
  size_t count = 0;
  for (const auto& model : family_models()) {
    // Keys and values that are made of latents are another way to compute them.
    if (!model.contains("same_as") || model.at("architecture") == "deepseek2") continue;
    ++count;
    for (const std::vector<double>& shares : {std::vector<double>{1}, std::vector<double>{3, 1}}) {
      SCOPED_TRACE(model.at("name").get<std::string>());
      const auto compute = [&](const std::string& key) {
        LoadedModel loaded(kFamiliesFolder + model.at(key).get<std::string>(), {.shares = shares});
        return loaded.compute_alone(tokens, 128);
      };
      expect_same_bits(compute("same_as"), compute("file"));
    }
  }
  EXPECT_EQ(count, 4U);
}

}  // namespace
}  // namespace lockstep
