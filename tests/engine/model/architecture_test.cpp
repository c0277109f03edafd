// Files must say certain things for a model to be built of them; those that do not are refused by
// name.
#include "engine/model/architecture.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "tests/engine/model/architecture_case.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST_F(ArchitectureTest, a_file_that_is_no_model_by_itself_is_named_for_what_it_is) {
  GgufWriter adapter;
  adapter.add("general.architecture", std::string("llama"));
  adapter.add("general.type", std::string("adapter"));
  EXPECT_THAT(error_of(adapter), HasSubstr("general.type is \"adapter\""));
  EXPECT_THAT(error_of(adapter), HasSubstr("LoRA"));
  GgufWriter projector;
  projector.add("general.type", std::string("mmproj"));
  EXPECT_THAT(error_of(projector), HasSubstr("general.type is \"mmproj\": the file is no model"));
  EXPECT_EQ(error_of(tiny_llama().add("general.type", std::string("model"))), "");
}

TEST_F(ArchitectureTest, a_mixtures_experts_are_matrices_of_their_own) {
  const Place together = [](const std::string& part, size_t expert) {
    return std::pair("blk.0.ffn_" + part + "_exps.weight", expert * (part == "down" ? 64 : 40));
  };
  expect_experts(tiny_mixture("llama"), together);
  expect_experts(tiny_mixture("qwen3moe"), together);
  expect_experts(tiny_old_mixture(), [](const std::string& part, size_t expert) {
    return std::pair("blk.0.ffn_" + part + "." + std::to_string(expert) + ".weight", size_t{0});
  });
}

TEST_F(ArchitectureTest, experts_are_as_wide_as_the_feed_forward_where_nothing_else_is_said) {
  GgufWriter mixture = tiny_attention("llama");
  mixture.add("llama.expert_count", uint32_t{5}).add("llama.expert_used_count", uint32_t{2});
  for (const GgufWriter::Tensor& tensor : tiny_mixture("llama").tensors) {
    if (tensor.name.starts_with("blk.0.ffn_") && tensor.name != "blk.0.ffn_norm.weight") {
      mixture.tensors.push_back(tensor);
    }
  }
  EXPECT_EQ(error_of(mixture), "llama.feed_forward_length is missing");
  EXPECT_EQ(error_of(mixture.add("llama.feed_forward_length", uint32_t{40})), "");
  // And where both are said, the experts' is theirs.
  EXPECT_EQ(error_of(tiny_mixture("llama").add("llama.feed_forward_length", uint32_t{96})), "");
}

TEST_F(ArchitectureTest, without_experts_a_count_of_0_is_none) {
  EXPECT_EQ(error_of(tiny_llama().add("llama.expert_count", uint32_t{0})), "");
  EXPECT_EQ(error_of(tiny_llama().add("llama.expert_used_count", uint32_t{0})), "");
}

TEST_F(ArchitectureTest, a_family_is_no_mixture_or_always_one_where_it_is_known_as_such) {
  EXPECT_EQ(error_of(tiny_mixture("qwen3")),
            "qwen3.expert_count is 5: no mixtures of experts of this architecture are known");
  EXPECT_EQ(error_of(tiny_attention("qwen3moe")), "qwen3moe.expert_count is missing");
  EXPECT_EQ(error_of(tiny_attention("qwen3moe").add("qwen3moe.expert_count", uint32_t{0})),
            "qwen3moe.expert_count is 0; it must be from 1 to 1024");
}

TEST_F(ArchitectureTest, counts_of_experts_are_bounded) {
  const auto error = [&](uint32_t layers, uint32_t experts, uint32_t chosen) {
    GgufWriter file;
    file.add("general.architecture", std::string("llama"));
    file.add("llama.block_count", layers).add("llama.embedding_length", uint32_t{64});
    file.add("llama.feed_forward_length", uint32_t{40}).add("llama.context_length", uint32_t{128});
    file.add("llama.attention.head_count", uint32_t{4});
    file.add("llama.attention.layer_norm_rms_epsilon", 1e-5F);
    file.add("llama.expert_count", experts).add("llama.expert_used_count", chosen);
    return error_of(file);
  };
  const std::string fine = "tensor token_embd.weight is missing";
  EXPECT_EQ(error(1, 1024, 64), fine);
  EXPECT_EQ(error(1, 1, 1), fine);
  EXPECT_EQ(error(1, 1025, 2), "llama.expert_count is 1025; it must be from 1 to 1024");
  EXPECT_EQ(error(1, 8, 0), "llama.expert_used_count is 0; it must be from 1 to 8");
  EXPECT_EQ(error(1, 8, 9), "llama.expert_used_count is 9; it must be from 1 to 8");
  EXPECT_EQ(error(1, 1024, 65), "llama.expert_used_count is 65; it must be from 1 to 64");
  EXPECT_EQ(error(128, 1024, 2), fine);
  EXPECT_EQ(error(129, 1024, 2),
            "llama.block_count is 129 and expert_count 1024; at most 131072 experts are accepted");
}

TEST_F(ArchitectureTest, any_number_of_query_heads_may_share_a_kv_head) {
  const auto error = [&](uint32_t heads, uint32_t kv_heads) {
    GgufWriter file;
    file.add("general.architecture", std::string("llama"));
    file.add("llama.block_count", uint32_t{1}).add("llama.embedding_length", uint32_t{64});
    file.add("llama.feed_forward_length", uint32_t{40}).add("llama.context_length", uint32_t{128});
    file.add("llama.attention.head_count", heads);
    file.add("llama.attention.head_count_kv", kv_heads);
    file.add("llama.attention.key_length", uint32_t{16});
    file.add("llama.attention.value_length", uint32_t{16});
    file.add("llama.attention.layer_norm_rms_epsilon", 1e-5F);
    return error_of(file);
  };
  EXPECT_EQ(error(64, 1), "tensor token_embd.weight is missing");
  EXPECT_EQ(error(130, 1), "tensor token_embd.weight is missing");
  EXPECT_EQ(error(66, 4),
            "llama.attention.head_count is 66 and head_count_kv 4: the first must be a multiple of "
            "the second");
}

TEST_F(ArchitectureTest, a_mixture_is_routed_and_weighed_as_its_keys_say) {
  const auto expect = [&](const std::string& key, const auto& value, const std::string& said) {
    for (const std::string architecture : {"llama", "qwen3moe"}) {
      EXPECT_EQ(error_of(tiny_mixture(architecture).add(architecture + "." + key, value)),
                said.empty() ? "" : architecture + "." + key + " is " + said);
    }
  };
  for (const uint32_t function : {0U, 1U, 2U, 3U, 4U}) expect("expert_gating_func", function, "");
  expect("expert_gating_func", uint32_t{5},
         "5; known are 1 (softmax), 2 (sigmoid), 3 (softmax of the chosen) and 4 (square root of "
         "softplus)");
  expect("expert_weights_norm", true, "");
  expect("expert_weights_norm", false, "");
  expect("expert_weights_scale", 0.0F, "");
  expect("expert_weights_scale", 2.5F, "");
  expect("expert_weights_scale", -1.0F, "-1; it must be above 0");
  expect("expert_group_count", uint32_t{1}, "");
  expect("expert_group_count", uint32_t{2}, "2 and expert_count 5: groups are of one size");
  expect("expert_group_count", uint32_t{8}, "8; it must be from 1 to 5");
  expect("expert_shared_count", uint32_t{0}, "");
  expect("leading_dense_block_count", uint32_t{0}, "");
  expect("leading_dense_block_count", uint32_t{2}, "2; it must be from 1 to 1");
  expect("interleave_moe_layer_step", uint32_t{1}, "");
  expect("moe_every_n_layers", uint32_t{2}, "2; known is 1 (experts in all layers)");
  EXPECT_EQ(error_of(tiny_mixture("llama")
                         .add("llama.expert_group_count", uint32_t{5})
                         .add("llama.expert_group_used_count", uint32_t{1})),
            "llama.expert_used_count is 2, but a token chooses among 1 (1 of 5 groups of 5 "
            "experts)");
  EXPECT_EQ(error_of(tiny_mixture("llama").add("llama.expert_shared_count", uint32_t{1})),
            "tensor blk.0.ffn_gate_shexp.weight is missing");
  EXPECT_THAT(error_of(tiny_mixture("llama").add("llama.expert_gating_func", std::string("?"))),
              HasSubstr("\"llama.expert_gating_func\" is"));
  EXPECT_THAT(error_of(tiny_mixture("llama").add_tensor("blk.0.ffn_up_shexp.weight", Format::kF32,
                                                        {64, 40})),
              HasSubstr("tensor \"blk.0.ffn_up_shexp.weight\" has no place"));
}

TEST_F(ArchitectureTest, adjugate_experts_are_of_groups_of_one_size) {
  const auto file = [](uint32_t group, auto scale, uint32_t wide) {
    GgufWriter mixture = tiny_mixture("grovemoe");
    mixture.add("grovemoe.experts_per_group", group).add("grovemoe.expert_group_scale", scale);
    if (wide > 0) mixture.add("grovemoe.expert_chunk_feed_forward_length", wide);
    mixture.add_tensor("blk.0.attn_q_norm.weight", Format::kF32, {16});
    mixture.add_tensor("blk.0.attn_k_norm.weight", Format::kF32, {16});
    for (const char* const name : {"blk.0.ffn_gate_chexps.weight", "blk.0.ffn_up_chexps.weight"}) {
      mixture.add_tensor(name, Format::kF32, {64, 24, 1});
    }
    mixture.add_tensor("blk.0.ffn_down_chexps.weight", Format::kF32, {24, 64, 1});
    return mixture;
  };
  EXPECT_EQ(error_of(file(5, 0.05F, 24)), "");
  EXPECT_EQ(error_of(file(2, 0.05F, 24)),
            "grovemoe.experts_per_group is 2 and expert_count 5: groups are of one size");
  EXPECT_EQ(error_of(file(0, 0.05F, 24)),
            "grovemoe.experts_per_group is 0; it must be from 1 to 5");
  EXPECT_EQ(error_of(file(6, 0.05F, 24)),
            "grovemoe.experts_per_group is 6; it must be from 1 to 5");
  EXPECT_EQ(error_of(file(5, INFINITY, 24)),
            "grovemoe.expert_group_scale is inf; it must be a number");
  EXPECT_EQ(error_of(file(5, 1e300, 24)),
            "grovemoe.expert_group_scale is 1e+300; it must be a number");
  EXPECT_EQ(error_of(file(5, 0.05F, 0)), "grovemoe.attention.key_length is missing");
  EXPECT_EQ(error_of(tiny_mixture("grovemoe")
                         .add("grovemoe.experts_per_group", uint32_t{5})
                         .add("grovemoe.expert_chunk_feed_forward_length", uint32_t{24})),
            "grovemoe.expert_group_scale is missing");
  EXPECT_THAT(error_of(file(1, 0.05F, 24)), HasSubstr("blk.0.ffn_gate_chexps.weight"));
}

// DeepSeek-V2's by their best expert, V3's by their two best.
TEST_F(ArchitectureTest, groups_of_experts_are_ranked_by_two_values_where_there_are_biases) {
  for (const bool has_biases : {false, true}) {
    GgufWriter file = tiny_mixture("llama");
    file.add("llama.expert_group_count", uint32_t{5});
    file.add("llama.expert_group_used_count", uint32_t{3});
    if (has_biases) file.add_tensor("blk.0.exp_probs_b.bias", Format::kF32, {5});
    const auto model = build(file);
    ASSERT_TRUE(model.has_value()) << model.error().message;
    const auto route =
        std::ranges::find(model->graph.nodes(), Operation::kRoute, &GraphNode::operation);
    EXPECT_EQ(route->gating.group_values, has_biases ? 2U : 1U);
    EXPECT_EQ(route->gating.chosen_groups, 3U);
  }
}

TEST_F(ArchitectureTest, a_layer_norm_without_its_weight_is_refused) {
  GgufWriter file;
  file.add("general.architecture", std::string("orion"));
  file.add("orion.block_count", uint32_t{1}).add("orion.embedding_length", uint32_t{64});
  file.add("orion.feed_forward_length", uint32_t{40}).add("orion.context_length", uint32_t{128});
  file.add("orion.attention.head_count", uint32_t{4});
  file.add("orion.attention.layer_norm_epsilon", 1e-5F);
  file.add_tensor("token_embd.weight", Format::kF32, {64, 10});
  EXPECT_EQ(error_of(file), "tensor blk.0.attn_norm.weight is missing");
}

TEST_F(ArchitectureTest, latents_are_whole_blocks_within_the_widest_head) {
  const auto error = [&](uint32_t latent, uint32_t rope, uint32_t key, uint32_t value) {
    GgufWriter file;
    file.add("general.architecture", std::string("deepseek2"));
    const auto add = [&](const std::string& name, auto number) {
      file.add("deepseek2." + name, number);
    };
    add("block_count", uint32_t{1});
    add("embedding_length", uint32_t{64});
    add("feed_forward_length", uint32_t{40});
    add("context_length", uint32_t{128});
    add("attention.head_count", uint32_t{4});
    add("attention.head_count_kv", uint32_t{1});
    add("attention.kv_lora_rank", latent);
    add("rope.dimension_count", rope);
    add("attention.key_length_mla", key);
    add("attention.value_length_mla", value);
    add("attention.layer_norm_rms_epsilon", 1e-5F);
    add("expert_count", uint32_t{4});
    add("expert_used_count", uint32_t{2});
    return error_of(file);
  };
  const std::string fine = "tensor token_embd.weight is missing";
  EXPECT_EQ(error(512, 64, 192, 128), fine);
  EXPECT_EQ(error(32, 16, 48, 32), fine);
  EXPECT_EQ(error(48, 16, 48, 32),
            "deepseek2.attention.kv_lora_rank is 48; known are multiples of 32");
  EXPECT_EQ(error(64, 16, 64, 32),
            "deepseek2.attention.key_length_mla without rope.dimension_count is 48; known are "
            "multiples of 32");
  EXPECT_EQ(error(64, 64, 64, 32),
            "deepseek2.attention.key_length_mla is 64 and rope.dimension_count 64: keys have "
            "dimensions without positions too");
  EXPECT_EQ(error(544, 64, 192, 128),
            "deepseek2.attention.kv_lora_rank is 544 and rope.dimension_count 64; together they "
            "may be 576");
}

TEST_F(ArchitectureTest, heads_of_kimi_delta_attention_are_whole_blocks) {
  const auto error = [&](uint32_t dimension, uint32_t taps) {
    GgufWriter file;
    file.add("general.architecture", std::string("kimi-linear"));
    const auto add = [&](const std::string& name, auto number) {
      file.add("kimi-linear." + name, number);
    };
    add("block_count", uint32_t{2});
    add("embedding_length", uint32_t{64});
    add("feed_forward_length", uint32_t{40});
    add("context_length", uint32_t{128});
    add("attention.head_count", uint32_t{4});
    file.add_array("kimi-linear.attention.head_count_kv", std::vector<uint32_t>{0, 1});
    add("attention.kv_lora_rank", uint32_t{64});
    add("rope.dimension_count", uint32_t{16});
    add("attention.key_length_mla", uint32_t{48});
    add("attention.value_length_mla", uint32_t{32});
    add("attention.layer_norm_rms_epsilon", 1e-5F);
    add("expert_count", uint32_t{4});
    add("expert_used_count", uint32_t{2});
    add("kda.head_dim", dimension);
    add("ssm.conv_kernel", taps);
    return error_of(file);
  };
  EXPECT_EQ(error(32, 4), "tensor token_embd.weight is missing");
  EXPECT_EQ(error(48, 4), "kimi-linear.kda.head_dim is 48; known are multiples of 32");
  EXPECT_EQ(error(288, 4), "kimi-linear.kda.head_dim is 288; it must be from 1 to 256");
  EXPECT_EQ(error(32, 1), "kimi-linear.ssm.conv_kernel is 1; it must be from 2 to 16");
}

// Layers of one model differ in how many experts a token goes to (Nemotron 3 Puzzle).
TEST_F(ArchitectureTest, mixtures_that_differ_from_layer_to_layer_are_refused) {
  GgufWriter file;
  file.add("general.architecture", std::string("nemotron_h_moe"));
  const auto add = [&](const std::string& name, auto value) {
    file.add("nemotron_h_moe." + name, value);
  };
  add("block_count", uint32_t{2});
  add("embedding_length", uint32_t{64});
  file.add_array("nemotron_h_moe.feed_forward_length", std::vector<uint32_t>{0, 40});
  add("context_length", uint32_t{128});
  add("attention.head_count", uint32_t{4});
  file.add_array("nemotron_h_moe.attention.head_count_kv", std::vector<uint32_t>{1, 0});
  add("attention.layer_norm_rms_epsilon", 1e-5F);
  add("expert_count", uint32_t{4});
  file.add_array("nemotron_h_moe.expert_used_count", std::vector<uint32_t>{0, 2});
  EXPECT_NE(error_of(file).find("nemotron_h_moe.expert_used_count"), std::string::npos)
      << error_of(file);
}

TEST_F(ArchitectureTest, experts_that_are_missing_or_have_another_shape_are_named) {
  EXPECT_EQ(error_of(without(tiny_mixture("llama"), "blk.0.ffn_gate_inp.weight")),
            "tensor blk.0.ffn_gate_inp.weight is missing");
  EXPECT_EQ(error_of(without(tiny_mixture("llama"), "blk.0.ffn_up_exps.weight")),
            "tensor blk.0.ffn_up_exps.weight is missing");
  EXPECT_EQ(error_of(without(tiny_old_mixture(), "blk.0.ffn_up.3.weight")),
            "tensor blk.0.ffn_up.3.weight is missing");
  using Dimensions = std::vector<uint64_t>;
  for (const auto& [dimensions, said] : {std::pair<Dimensions, const char*>{{64, 40}, "64 x 40"},
                                         {{64, 40, 4}, "64 x 40 x 4"},
                                         {{64, 5, 40}, "64 x 5 x 40"},
                                         {{40, 64, 5}, "40 x 64 x 5"},
                                         {{64, 200}, "64 x 200"},
                                         {{64, 40, 1, 5}, "64 x 40 x 1 x 5"}}) {
    GgufWriter file = without(tiny_mixture("llama"), "blk.0.ffn_up_exps.weight");
    file.add_tensor("blk.0.ffn_up_exps.weight", Format::kF32, dimensions);
    EXPECT_EQ(error_of(file), std::string("tensor blk.0.ffn_up_exps.weight is ") + said +
                                  "; the metadata makes it 64 x 40 x 5 experts");
  }
  GgufWriter router = without(tiny_mixture("llama"), "blk.0.ffn_gate_inp.weight");
  router.add_tensor("blk.0.ffn_gate_inp.weight", Format::kF32, {64, 4});
  EXPECT_EQ(
      error_of(router),
      "tensor blk.0.ffn_gate_inp.weight has 4 rows of 64; the metadata makes it 5 rows of 64");
  GgufWriter deep = without(tiny_mixture("llama"), "blk.0.attn_q.weight");
  deep.add_tensor("blk.0.attn_q.weight", Format::kF32, {64, 32, 2});
  EXPECT_EQ(error_of(deep),
            "tensor blk.0.attn_q.weight is 64 x 32 x 2; the metadata makes it 64 x 64");
}

TEST_F(ArchitectureTest, experts_of_their_own_tensors_have_one_format) {
  GgufWriter file = without(tiny_old_mixture(), "blk.0.ffn_up.3.weight");
  file.add_tensor("blk.0.ffn_up.3.weight", Format::kF16, {64, 40});
  EXPECT_EQ(error_of(file),
            "tensor blk.0.ffn_up.3.weight is F16 and blk.0.ffn_up.0.weight is F32; all experts of "
            "a layer must have one format");
}

TEST_F(ArchitectureTest, a_single_expert_may_lie_in_a_matrix) {
  GgufWriter file = tiny_attention("qwen3moe");
  file.add("qwen3moe.expert_count", uint32_t{1}).add("qwen3moe.expert_used_count", uint32_t{1});
  file.add("qwen3moe.expert_feed_forward_length", uint32_t{40});
  file.add_tensor("blk.0.ffn_gate_inp.weight", Format::kF32, {64});
  file.add_tensor("blk.0.ffn_gate_exps.weight", Format::kF32, {64, 40});
  file.add_tensor("blk.0.ffn_up_exps.weight", Format::kF32, {64, 40, 1});
  file.add_tensor("blk.0.ffn_down_exps.weight", Format::kF32, {40, 64});
  EXPECT_EQ(error_of(file), "");
}

TEST_F(ArchitectureTest, an_unknown_architecture_is_told_the_nearest) {
  GgufWriter file;
  file.add("general.architecture", std::string("qwen5moe"));
  EXPECT_THAT(error_of(file), HasSubstr("architecture \"qwen5moe\" is not known here; nearest "
                                        "are qwen2moe, qwen35moe, "));
  EXPECT_THAT(error_of(file), HasSubstr("; known are: apertus, arcee, arctic, baichuan, "));
}

TEST_F(ArchitectureTest, baichuan_is_known_by_its_layers) {
  GgufWriter file;
  file.add("general.architecture", std::string("baichuan"));
  file.add("baichuan.block_count", uint32_t{36});
  EXPECT_THAT(error_of(file), HasSubstr("baichuan.block_count is 36; known are 32"));
  EXPECT_THAT(error_of(file), HasSubstr("ALiBi"));
}

TEST_F(ArchitectureTest, sizes_by_layer_are_one_for_each_within_their_bounds) {
  const auto error = [&](const std::vector<int32_t>& heads, const std::vector<int32_t>& kv_heads) {
    GgufWriter file;
    file.add("general.architecture", std::string("openelm"));
    file.add("openelm.block_count", uint32_t{2}).add("openelm.embedding_length", uint32_t{64});
    file.add("openelm.context_length", uint32_t{128});
    file.add_array("openelm.feed_forward_length", std::vector<int32_t>{40, 64});
    file.add_array("openelm.attention.head_count", heads);
    file.add_array("openelm.attention.head_count_kv", kv_heads);
    file.add("openelm.attention.key_length", uint32_t{16});
    file.add("openelm.attention.layer_norm_rms_epsilon", 1e-5F);
    return error_of(file);
  };
  EXPECT_EQ(error({2, 4}, {1, 2}), "tensor token_embd.weight is missing");
  EXPECT_EQ(error({2, 4, 6}, {1, 2, 3}), "tensor token_embd.weight is missing");
  EXPECT_EQ(error({2}, {1, 2}), "openelm.attention.head_count has 1 elements; there are 2 layers");
  EXPECT_EQ(error({2, -4}, {1, 2}),
            "openelm.attention.head_count holds -4 at 1; it must be from 1 to 1048576");
  EXPECT_EQ(error({2, 4}, {0, 2}),
            "openelm.attention.head_count_kv holds 0 at 0; it must be from 1 to 1048576");
  EXPECT_EQ(error({2, 4}, {1, 3}),
            "openelm.attention.head_count is 4 and head_count_kv 3: the first must be a multiple "
            "of the second");
}

TEST_F(ArchitectureTest, a_layer_of_those_that_may_lack_parts_has_attention) {
  const auto error = [&](const std::vector<int32_t>& heads, const std::vector<int32_t>& kv_heads,
                         uint32_t columns) {
    GgufWriter file;
    file.add("general.architecture", std::string("deci"));
    file.add("deci.block_count", uint32_t{2}).add("deci.embedding_length", columns);
    file.add("deci.context_length", uint32_t{128});
    file.add("deci.feed_forward_length", uint32_t{40});
    file.add_array("deci.attention.head_count", heads);
    file.add_array("deci.attention.head_count_kv", kv_heads);
    file.add("deci.attention.layer_norm_rms_epsilon", 1e-5F);
    return error_of(file);
  };
  const std::string none =
      "deci.attention.head_count or head_count_kv is 0 in each of 2 layers; one of them must have "
      "attention";
  for (const uint32_t columns : {64U, 4096U}) {
    EXPECT_EQ(error({0, 0}, {0, 0}, columns), none);
    EXPECT_EQ(error({4, 0}, {0, 2}, columns), none);  // a product in its place, and none
  }
  EXPECT_EQ(error({0, 4}, {0, 2}, 64), "tensor token_embd.weight is missing");
  EXPECT_EQ(error({4, 0}, {2, 0}, 64), "tensor token_embd.weight is missing");
}

TEST_F(ArchitectureTest, a_convolution_is_over_as_many_tokens_as_are_known) {
  const auto lfm2 = [](const std::vector<int32_t>& kv_heads, uint32_t tokens) {
    GgufWriter file;
    file.add("general.architecture", std::string("lfm2"));
    file.add("lfm2.block_count", uint32_t{2}).add("lfm2.embedding_length", uint32_t{64});
    file.add("lfm2.context_length", uint32_t{128});
    file.add("lfm2.feed_forward_length", uint32_t{40});
    file.add("lfm2.attention.head_count", uint32_t{4});
    file.add_array("lfm2.attention.head_count_kv", kv_heads);
    file.add("lfm2.attention.layer_norm_rms_epsilon", 1e-5F);
    if (tokens > 0) file.add("lfm2.shortconv.l_cache", tokens);
    return file;
  };
  EXPECT_EQ(error_of(lfm2({0, 2}, 3)), "tensor token_embd.weight is missing");
  EXPECT_EQ(error_of(lfm2({0, 2}, 0)), "lfm2.shortconv.l_cache is missing");
  EXPECT_EQ(error_of(lfm2({0, 2}, 1)), "lfm2.shortconv.l_cache is 1; it must be from 2 to 16");
  EXPECT_EQ(error_of(lfm2({0, 2}, 17)), "lfm2.shortconv.l_cache is 17; it must be from 2 to 16");
  EXPECT_EQ(error_of(lfm2({0, 0}, 3)),
            "lfm2.attention.head_count or head_count_kv is 0 in each of 2 layers; one of them must "
            "have attention");
  EXPECT_EQ(error_of(lfm2({0, 2}, 3).add("lfm2.attention.causal", false)),
            "lfm2.attention.causal is false, but convolutions over the tokens behind one are not "
            "known here: take a file of a model that generates, or another program for this one");
  GgufWriter without = lfm2({0, 2}, 3);
  without.add_tensor("token_embd.weight", {64, 10}, std::vector<float>(640));
  without.add_tensor("blk.0.attn_norm.weight", {64}, std::vector<float>(64));
  EXPECT_EQ(error_of(without), "tensor blk.0.shortconv.in_proj.weight is missing");
}

TEST_F(ArchitectureTest, a_head_reads_the_mean_of_tokens_that_see_later_ones) {
  const auto ranking = [](uint32_t window) {
    GgufWriter file;
    file.add("general.architecture", std::string("modern-bert"));
    using Number = std::pair<std::string, uint32_t>;
    for (const auto& [key, value] :
         {Number("block_count", 1), Number("embedding_length", 64), Number("context_length", 128),
          Number("attention.head_count", 4), Number("feed_forward_length", 96),
          Number("attention.sliding_window", window), Number("attention.sliding_window_pattern", 0),
          Number("pooling_type", 4)}) {
      file.add("modern-bert." + key, value);
    }
    file.add("modern-bert.attention.layer_norm_epsilon", 1e-5F);
    using Tensor = std::pair<std::string, std::vector<uint64_t>>;
    for (const auto& [name, dimensions] :
         {Tensor("token_embd", {64, 32}), Tensor("token_embd_norm", {64}),
          Tensor("blk.0.attn_qkv", {64, 192}), Tensor("blk.0.attn_output", {64, 64}),
          Tensor("blk.0.ffn_norm", {64}), Tensor("blk.0.ffn_up", {64, 192}),
          Tensor("blk.0.ffn_down", {96, 64}), Tensor("output_norm", {64}), Tensor("cls", {64, 64}),
          Tensor("cls.norm", {64}), Tensor("cls.output", {64, 1})}) {
      file.add_tensor(name + ".weight", Format::kF32, dimensions);
    }
    return file.add_tensor("cls.output.bias", Format::kF32, {1});
  };
  EXPECT_EQ(error_of(ranking(2)), "");
  EXPECT_EQ(error_of(ranking(1)),
            "modern-bert.attention.sliding_window is 1 in each of 1 layers, so that no token sees "
            "a later one, but the head reads the mean of all: take a file with longer windows");
}

TEST_F(ArchitectureTest, an_encoders_keys_are_of_those_that_are_known) {
  const auto modern = [](auto&&... keys) {
    GgufWriter file;
    file.add("general.architecture", std::string("modern-bert"));
    (file.add("modern-bert." + keys.first, keys.second), ...);
    return file;
  };
  using Number = std::pair<std::string, uint32_t>;
  const std::string fine = "modern-bert.block_count is missing";
  EXPECT_EQ(error_of(modern()), fine);
  EXPECT_EQ(error_of(modern(std::pair(std::string("hidden_activation"), std::string("silu")))),
            fine);
  EXPECT_EQ(error_of(modern(std::pair(std::string("hidden_activation"), std::string("relu")))),
            "modern-bert.hidden_activation is \"relu\"; known are gelu and silu");
  // A head of the mean of all states, as the first files have it without a word, or of the first.
  for (const uint32_t pooling : {1U, 2U}) {
    EXPECT_EQ(error_of(modern(Number("classifier.pooling_type", pooling))), fine);
  }
  EXPECT_EQ(error_of(modern(Number("classifier.pooling_type", 3))),
            "modern-bert.classifier.pooling_type is 3; known are 1 (the mean) and 2 (the first "
            "token)");

  GgufWriter mixture;
  mixture.add("general.architecture", std::string("nomic-bert-moe"));
  for (const auto& [key, value] :
       {Number("block_count", 6), Number("embedding_length", 64), Number("context_length", 128),
        Number("attention.head_count", 4), Number("feed_forward_length", 96),
        Number("expert_count", 4), Number("expert_used_count", 2),
        Number("moe_every_n_layers", 3)}) {
    mixture.add("nomic-bert-moe." + key, value);
  }
  mixture.add("nomic-bert-moe.attention.layer_norm_epsilon", 1e-5F);
  EXPECT_EQ(error_of(mixture),
            "nomic-bert-moe.moe_every_n_layers is 3; known is 2 (experts in every second layer)");
}

TEST_F(ArchitectureTest, layers_read_keys_of_an_earlier_layer_that_is_as_they_are) {
  const auto error = [&](const std::vector<int32_t>& heads, uint32_t shared) {
    GgufWriter file;
    const auto add = [&](const std::string& name, auto value) {
      file.add("gemma4." + name, value);
    };
    file.add("general.architecture", std::string("gemma4"));
    add("block_count", uint32_t{4});
    add("embedding_length", uint32_t{64});
    add("context_length", uint32_t{128});
    add("feed_forward_length", uint32_t{40});
    file.add_array("gemma4.attention.head_count", heads);
    add("attention.shared_kv_layers", shared);
    add("attention.sliding_window", uint32_t{16});
    file.add_array("gemma4.attention.sliding_window_pattern", std::vector<int32_t>{1, 0, 1, 0});
    add("attention.layer_norm_rms_epsilon", 1e-5F);
    return error_of(file);
  };
  const std::string fine = "tensor token_embd.weight is missing";
  EXPECT_EQ(error({2, 2, 2, 2}, 0), fine);
  EXPECT_EQ(error({2, 2, 2, 2}, 2), fine);
  EXPECT_EQ(error({2, 2, 2, 2}, 3),
            "gemma4.attention.shared_kv_layers is 3: no layer before has keys and values for layer "
            "1");
  EXPECT_EQ(error({2, 2, 2, 4}, 2),
            "gemma4.attention.shared_kv_layers is 2: no layer before has keys and values for layer "
            "3");
}

TEST_F(ArchitectureTest, keys_and_values_that_a_layer_reads_of_another_are_left_out) {
  GgufWriter file = tiny_attention("gemma4", 2);
  for (const char* const name : {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"}) {
    for (const std::string block : {"blk.0.", "blk.1."}) {
      file = without(std::move(file), block + name + ".weight");
      file.add_tensor(block + name + ".weight", Format::kF32, {64});
    }
  }
  file.add("gemma4.feed_forward_length", uint32_t{96});
  file.add("gemma4.attention.sliding_window", uint32_t{16});
  file.add_array("gemma4.attention.sliding_window_pattern", std::vector<int32_t>{0, 0});
  file.add("gemma4.attention.shared_kv_layers", uint32_t{1});
  for (const std::string block : {"blk.0.", "blk.1."}) {
    for (const char* const name : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
      file = without(std::move(file), block + name + ".weight");
      file.add_tensor(block + name + ".weight", Format::kF32, {64, 64});
    }
    file.add_tensor(block + "attn_q_norm.weight", Format::kF32, {16});
    file.add_tensor(block + "attn_k_norm.weight", Format::kF32, {16});
    file.add_tensor(block + "ffn_gate.weight", Format::kF32, {64, 96});
    file.add_tensor(block + "ffn_up.weight", Format::kF32, {64, 96});
    file.add_tensor(block + "ffn_down.weight", Format::kF32, {96, 64});
  }
  const auto model = build(file);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  ASSERT_EQ(model->left_out.size(), 1U);
  EXPECT_EQ(model->left_out[0].part, "keys and values of layers that read earlier ones'");
  EXPECT_EQ(model->left_out[0].tensors, 3U);
}

TEST_F(ArchitectureTest, an_indexer_is_left_out_and_bounds_the_context) {
  for (const char* const name : {"glm-dsa", "deepseek32"}) {
    const auto file =
        GgufFile::open(fmt::format("{}/tests/fixtures/families/{}.gguf", source_dir(), name));
    ASSERT_TRUE(file.has_value()) << file.error().message;
    const auto model = build_model({.file = *file});
    ASSERT_TRUE(model.has_value()) << model.error().message;
    EXPECT_EQ(model->trained_context_tokens, 128U);
    ASSERT_EQ(model->left_out.size(), 1U);
    EXPECT_EQ(model->left_out[0].part,
              "the indexer of attention, which leaves out no key of so short a context");
    EXPECT_TRUE(build_model({.file = *file, .context_tokens = 128}).has_value());
    const auto longer = build_model({.file = *file, .context_tokens = 129});
    ASSERT_FALSE(longer.has_value());
    EXPECT_THAT(longer.error().message,
                HasSubstr(fmt::format("from 128 on ({}.attention.indexer.top_k)", name)));
    EXPECT_THAT(longer.error().message, HasSubstr("ask for 128 or less"));
  }
}

}  // namespace
}  // namespace lockstep
