// Rotary frequencies and magnitudes against their definitions, in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <string_view>
#include <vector>

#include "tests/engine/model/architecture_case.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST_F(ArchitectureTest, a_scaling_factor_of_0_is_none) {
  const auto frequencies = [&](const GgufWriter& writer) {
    const auto model = build(writer);
    EXPECT_TRUE(model.has_value()) << model.error().message;
    return model ? model->graph.rotaries().front().frequencies : std::vector<double>();
  };
  const auto plain = frequencies(tiny_llama());
  EXPECT_EQ(frequencies(tiny_llama().add("llama.rope.scaling.factor", 0.0F)), plain);
  EXPECT_EQ(frequencies(tiny_llama().add("llama.rope.scale_linear", 0.0F)), plain);
  EXPECT_NE(frequencies(tiny_llama().add("llama.rope.scaling.factor", 2.0F)), plain);
  EXPECT_THAT(error_of(tiny_llama().add("llama.rope.scaling.factor", -1.0F)),
              HasSubstr("rope.scaling.factor is -1; it must be above 0"));
}

GgufWriter with_rope(std::string_view type) {
  GgufWriter file = tiny_llama();
  file.add("llama.rope.freq_base", 10000.0F);
  file.add("llama.rope.scaling.type", std::string(type));
  file.add("llama.rope.scaling.original_context_length", uint32_t{64});
  return file;
}

// YaRN as its paper defines it, by the number of turns r of a frequency within the original
// context: kept above beta_fast, interpolated below beta_slow. The pairs at which a frequency turns
// so often are rounded outwards, as the published code does.
std::vector<double> yarn_frequencies(double factor, double context, double fast, double slow) {
  const auto pair_of = [&](double turns) {
    double pair = 0;  // by bisection of turns = context / (2 pi) * base^(-2 pair / 16)
    double upper = 64;
    double lower = -64;
    while (upper - lower > 1e-12) {
      pair = (upper + lower) / 2;
      const double found = context / (2 * std::numbers::pi) * std::pow(10000.0, -pair / 8);
      (found > turns ? lower : upper) = pair;
    }
    return pair;
  };
  const double low = std::max(std::floor(pair_of(fast)), 0.0);
  const double high = std::min(std::ceil(pair_of(slow)), 15.0);
  std::vector<double> frequencies;
  for (int pair = 0; pair < 8; ++pair) {
    const double interpolated =
        std::min(1.0, std::max(0.0, (pair - low) / std::max(high - low, 0.001)));
    const double frequency = 1 / std::pow(10000.0, pair / 8.0);
    frequencies.push_back(frequency / factor * interpolated + frequency * (1 - interpolated));
  }
  return frequencies;
}

TEST_F(ArchitectureTest, yarn_mixes_frequencies_and_has_a_magnitude) {
  const auto rotary_of = [&](const GgufWriter& writer) {
    const auto model = build(writer);
    EXPECT_TRUE(model.has_value()) << model.error().message;
    return model ? model->graph.rotaries().front() : Rotary{};
  };
  const auto expect_frequencies = [](const Rotary& rotary, const std::vector<double>& expected) {
    ASSERT_EQ(rotary.frequencies.size(), expected.size());
    for (size_t pair = 0; pair < expected.size(); ++pair) {
      EXPECT_NEAR(rotary.frequencies[pair], expected[pair], 1e-14) << pair;
    }
  };
  GgufWriter file = with_rope("yarn").add("llama.rope.scaling.factor", 4.0F);
  const Rotary rotary = rotary_of(file);
  expect_frequencies(rotary, yarn_frequencies(4, 64, 32, 1));
  EXPECT_NEAR(rotary.magnitude, 1 + 0.1 * std::log(4.0), 1e-14);

  GgufWriter narrow = file;
  narrow.add("llama.rope.scaling.yarn_beta_fast", 8.0F);
  narrow.add("llama.rope.scaling.yarn_beta_slow", 0.25F);
  expect_frequencies(rotary_of(narrow), yarn_frequencies(4, 64, 8, 0.25));

  const auto magnitude_with = [&](const std::string& key, float value) {
    GgufWriter changed = file;
    return rotary_of(changed.add("llama.rope.scaling." + key, value)).magnitude;
  };
  EXPECT_NEAR(magnitude_with("attn_factor", 0.5F), 0.5 * rotary.magnitude, 1e-14);
  EXPECT_NEAR(magnitude_with("yarn_attn_factor", 1.25F), 1.25, 1e-14);
  EXPECT_EQ(magnitude_with("yarn_ext_factor", 0.0F), 1.0);
  const double multiplier = 0.1 * static_cast<double>(0.707F);
  EXPECT_NEAR(magnitude_with("yarn_log_multiplier", 0.707F),
              rotary.magnitude / (1 + multiplier * std::log(4.0)), 1e-14);
  EXPECT_THAT(error_of(GgufWriter(file).add("llama.rope.scaling.attn_factor", -1.0F)),
              HasSubstr("llama.rope.scaling.* make cosines and sines -1.1386"));
  EXPECT_EQ(error_of(with_rope("ntk")),
            "llama.rope.scaling.type is \"ntk\"; known are none, linear, yarn and longrope");
}

// If a part of a head is rotated, frequencies run from 1 to nearly 1 / base over that part.
TEST_F(ArchitectureTest, frequencies_are_those_of_the_dimensions_that_are_rotated) {
  GgufWriter part = tiny_llama().add("llama.rope.freq_base", 10000.0F);
  part.add("llama.rope.dimension_count", uint32_t{8});
  const auto plain = build(part);
  ASSERT_TRUE(plain.has_value()) << plain.error().message;
  const std::vector<double>& kept = plain->graph.rotaries().front().frequencies;
  ASSERT_EQ(kept.size(), 4U);
  for (int pair = 0; pair < 4; ++pair) {
    EXPECT_NEAR(kept[static_cast<size_t>(pair)], std::pow(10000.0, -pair / 4.0), 1e-14);
  }
  // Within 64 tokens the pairs of 8 dimensions turn 10.2, 1.02, 0.102 and 0.0102 times: from 32
  // to 1 turns is from before the first pair to behind the second.
  GgufWriter yarn = with_rope("yarn").add("llama.rope.scaling.factor", 4.0F);
  const auto scaled = build(yarn.add("llama.rope.dimension_count", uint32_t{8}));
  ASSERT_TRUE(scaled.has_value()) << scaled.error().message;
  const std::vector<double>& mixed = scaled->graph.rotaries().front().frequencies;
  ASSERT_EQ(mixed.size(), 4U);
  const double parts[] = {1, 0.625, 0.25, 0.25};
  for (size_t pair = 0; pair < 4; ++pair) {
    EXPECT_NEAR(mixed[pair], kept[pair] * parts[pair], 1e-14) << pair;
  }
}

// But in DeepSeek's files, of which there are fixtures.
TEST_F(ArchitectureTest, a_log_multiplier_leaves_the_attentions_scale) {
  GgufWriter file = with_rope("yarn").add("llama.rope.scaling.factor", 40.0F);
  const auto model = build(file.add("llama.rope.scaling.yarn_log_multiplier", 0.1F));
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const auto attention =
      std::ranges::find(model->graph.nodes(), Operation::kAttention, &GraphNode::operation);
  EXPECT_EQ(attention->attention.scale, 0.25F);
}

TEST_F(ArchitectureTest, longrope_takes_its_factors_by_the_context_that_is_served) {
  GgufWriter file = with_rope("longrope");
  const std::vector<float> short_factors = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<float> long_factors = {3, 4, 5, 6, 7, 8, 9, 10};
  file.add_tensor("rope_factors_long.weight", {8}, long_factors);
  EXPECT_EQ(error_of(file),
            "tensor rope_factors_short.weight is missing, though "
            "rope_factors_long.weight is not");
  file.add_tensor("rope_factors_short.weight", {8}, short_factors);
  file.write(path_);
  const auto opened = GgufFile::open(path_);
  ASSERT_TRUE(opened.has_value());
  for (const size_t context : {0U, 32U, 64U, 65U, 500U}) {
    const auto model = build_model({.file = *opened, .context_tokens = context});
    ASSERT_TRUE(model.has_value()) << model.error().message;
    const Rotary& rotary = model->graph.rotaries().front();
    // Asked for nothing, it is served as trained: with 128 tokens.
    const double first = context == 0 || context > 64 ? 3 : 1;
    for (int pair = 0; pair < 8; ++pair) {
      EXPECT_NEAR(rotary.frequencies[static_cast<size_t>(pair)],
                  std::pow(10000.0, -pair / 8.0) / (first + pair), 1e-14);
    }
    EXPECT_NEAR(rotary.magnitude, std::sqrt(1 + std::log(2.0) / std::log(64.0)), 1e-14);
    EXPECT_TRUE(model->left_out.empty());
  }
}

TEST_F(ArchitectureTest, a_fourth_section_of_positions_is_refused) {
  const auto with = [](std::vector<int32_t> sections) {
    return tiny_llama().add_array<int32_t>("llama.rope.dimension_sections", sections);
  };
  EXPECT_EQ(error_of(with({2, 3, 3, 0})), "");
  EXPECT_EQ(error_of(with({2, 3, 3})), "");
  EXPECT_THAT(error_of(with({2, 2, 2, 2})),
              HasSubstr("llama.rope.dimension_sections holds 2 at 3; known is 0"));
}

}  // namespace
}  // namespace lockstep
