// Every architecture and every form of its tensors on ranks that are GPUs, alone and beside nodes:
// simulated ones, or, in a build with CUDA, those of the machine.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/engine/runtime/gpu_rank_case.h"
#include "tests/engine/runtime/random_family.h"

namespace lockstep {
namespace {

// Ranks of one split; the first `gpus` are GPUs.
struct RankSet {
  std::vector<double> shares;
  size_t gpus = 0;
  std::vector<double> expert_shares = {};  // of a mixture; none: as all else
  size_t apart_layers = kNone;
};

std::vector<RankSet> rank_sets(bool is_mixture) {
  std::vector<RankSet> sets = {{{1}, 1}, {{1, 1}, 2}, {{2, 1, 1}, 3}};
  if (!is_mixture) {
    sets.push_back({{1, 1}, 1});
  } else {  // all that is no expert is the GPU's, and one layer's experts
    sets.push_back({{1, 0}, 1, {0, 1}});
    sets.push_back({{1, 0}, 1, {0, 1}, 1});
  }
  return sets;
}

class GpuFamilies : public OnTestGpus {
 protected:
  // On each set of ranks: a prompt, and one of which tokens are generated, as near to the model as
  // their roundings let them be.
  static void expect_near_reference(const FamilyFile& file, const std::string& compared_path,
                                    const std::string& path) {
    expect_near_reference(file, compared_path, path, rank_sets(file.experts > 0));
  }
  static void expect_near_reference(const FamilyFile& file, const std::string& compared_path,
                                    const std::string& path, const std::vector<RankSet>& sets) {
    const bool floats = file.format == Format::kF32;
    const KvFormat kv_format = floats ? KvFormat::kF32 : KvFormat::kF16;
    const auto tokens = some_tokens(11, 3);
    const ReferenceModel reference(compared_path, tokens);
    const double on_gpus = reference.bound(gpu_roundings(kv_format));
    const double mixed = reference.bound(mixed_roundings(kv_format));
    for (const RankSet& set : sets) {
      SCOPED_TRACE(fmt::format("shares {}, {} GPUs", fmt::join(set.shares, ":"), set.gpus));
      LoadedModelOptions options = on_gpu(kv_format);
      options.shares = set.shares;
      options.expert_shares = set.expert_shares;
      options.apart_layers = set.apart_layers;
      options.gpu_count = set.gpus;
      options.strategy = set.shares.size() > 1 ? Strategy::kReduce : Strategy::kGather;
      LoadedModel loaded(path, options);
      const double bound = set.gpus == set.shares.size() ? on_gpus : mixed;
      const LogitRows prompted = loaded.compute_alone(tokens, 128);
      EXPECT_LE(worst_difference(prompted, reference.logits()), bound);
      expect_same_bits(prompted, loaded.compute_alone(tokens, 4));
      EXPECT_LE(worst_difference(generate_after_prompt(loaded, tokens, 8), reference.logits()),
                bound);
    }
  }
  static void expect_near_reference(const FamilyFile& file) {
    const RandomFamily model(file, /*seed=*/71);
    expect_near_reference(file, model.path(), model.path());
  }
};

TEST_F(GpuFamilies, every_architecture_is_the_model_on_any_ranks) {
  for (const std::string_view name : random_families()) {
    if (name == "deepseek2") continue;  // which GPUs do not compute
    SCOPED_TRACE(name);
    expect_near_reference(family_file(name));
  }
}

TEST_F(GpuFamilies, biases_everywhere_and_positions_of_a_part_of_a_head) {
  FamilyFile file{.attention_biases = true, .output_bias = true, .feed_forward_biases = true};
  expect_near_reference(file);
  file.head_dimension = 24;
  file.rotary_dimensions = 16;
  expect_near_reference(file);
  file.architecture = "qwen2";  // whose pairs are halves
  expect_near_reference(file);
  file.architecture = "maincoder";
  file.head_norms = true;
  expect_near_reference(file);
}

TEST_F(GpuFamilies, scaled_positions) {
  for (const RopeScaling scaling : {RopeScaling::kYarn, RopeScaling::kLongrope}) {
    for (const char* const architecture : {"llama", "qwen3"}) {
      SCOPED_TRACE(fmt::format("{}, {}", architecture, static_cast<int>(scaling)));
      FamilyFile file = family_file(architecture);
      file.scaling = scaling;
      expect_near_reference(file);
    }
  }
}

TEST_F(GpuFamilies, values_of_another_dimension_than_keys) {
  for (const uint32_t dimension : {24U, 64U}) {
    SCOPED_TRACE(dimension);
    expect_near_reference({.value_dimension = dimension});
    if (dimension % 32 == 0) {
      expect_near_reference({.format = Format::kQ8_0, .value_dimension = dimension});
    }
  }
}

// More of them for a token than a GPU computes: all are the nodes'.
TEST_F(GpuFamilies, many_experts_of_a_token_are_computed_by_nodes) {
  const FamilyFile file{.experts = 40};
  const RandomFamily model(file, /*seed=*/73);
  expect_near_reference(file, model.path(), model.path(),
                        {{{1, 0}, 1, {0, 1}}, {{1, 0, 0}, 1, {0, 2, 1}}});
}

// The reference reads the tensors apart: what is fused differs from them in place alone.
TEST_F(GpuFamilies, fused_tensors_are_those_apart) {
  for (const uint32_t experts : {0U, 3U}) {
    for (const Format format : {Format::kF32, Format::kQ8_0}) {
      SCOPED_TRACE(fmt::format("{} experts, {}", experts, traits(format).name));
      FamilyFile file{.format = format,
                      .experts = experts,
                      .attention_biases = true,
                      .feed_forward_biases = experts == 0};
      const RandomFamily apart(file, /*seed=*/72);
      file.fused = true;
      const RandomFamily fused(file, /*seed=*/72);
      expect_near_reference(file, apart.path(), fused.path());
    }
  }
}

}  // namespace
}  // namespace lockstep
