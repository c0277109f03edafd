// Keys that files leave unsaid: the architecture, the number of layers or the vocabulary tells then
// what is meant.
#include <gmock/gmock.h>

#include "tests/engine/model/architecture_case.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

class UnsaidKeys : public ArchitectureTest {};

TEST_F(UnsaidKeys, the_first_files_of_qwen_2s_mixtures_do_not_say_how_wide_experts_are) {
  GgufWriter file = tiny_attention("qwen2moe");
  for (const char* const bias : {"blk.0.attn_q.bias", "blk.0.attn_k.bias", "blk.0.attn_v.bias"}) {
    file.add_tensor(bias, Format::kF32, {64});
  }
  file.add("qwen2moe.expert_count", uint32_t{5}).add("qwen2moe.expert_used_count", uint32_t{2});
  file.add("qwen2moe.feed_forward_length", uint32_t{80});
  for (const GgufWriter::Tensor& tensor : tiny_mixture("llama").tensors) {
    if (tensor.name.starts_with("blk.0.ffn_") && tensor.name != "blk.0.ffn_norm.weight") {
      file.tensors.push_back(tensor);  // experts of 40
    }
  }
  file.add_tensor("blk.0.ffn_gate_inp_shexp.weight", Format::kF32, {64});
  file.add_tensor("blk.0.ffn_gate_shexp.weight", Format::kF32, {64, 80});
  file.add_tensor("blk.0.ffn_up_shexp.weight", Format::kF32, {64, 80});
  file.add_tensor("blk.0.ffn_down_shexp.weight", Format::kF32, {80, 64});
  EXPECT_EQ(error_of(file), "");
  EXPECT_THAT(error_of(file.add("qwen2moe.expert_feed_forward_length", uint32_t{48})),
              HasSubstr("64 x 48 x 5 experts"));
}

// EXAONE 4.5 has as many layers as EXAONE 4's largest, and a block that predicts further tokens.
TEST_F(UnsaidKeys, blocks_that_predict_further_tokens_do_not_count_where_layers_tell_models) {
  const auto windowed_of = [&](uint32_t layers, uint32_t predicting) {
    GgufWriter file;
    file.add("general.architecture", std::string("exaone4"));
    using Number = std::pair<std::string, uint32_t>;
    for (const auto& [key, value] :
         {Number("block_count", layers + predicting), Number("nextn_predict_layers", predicting),
          Number("embedding_length", 32), Number("context_length", 8192),
          Number("feed_forward_length", 32), Number("attention.head_count", 1)}) {
      file.add("exaone4." + key, value);
    }
    file.add("exaone4.attention.layer_norm_rms_epsilon", 1e-5F);
    file.add_tensor("token_embd.weight", Format::kQ8_0, {32, 64});
    file.add_tensor("output_norm.weight", Format::kF32, {32});
    for (uint32_t layer = 0; layer < layers; ++layer) {
      const std::string block = fmt::format("blk.{}.", layer);
      for (const char* const norm :
           {"post_attention_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm"}) {
        file.add_tensor(block + norm + ".weight", Format::kF32, {32});
      }
      for (const char* const matrix :
           {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
        file.add_tensor(block + matrix + ".weight", Format::kQ8_0, {32, 32});
      }
    }
    const auto model = build(file);
    EXPECT_TRUE(model.has_value()) << model.error().message;
    return !model ? 0 : std::ranges::count_if(model->graph.nodes(), [](const GraphNode& node) {
      return node.attention.window != 0;
    });
  };
  EXPECT_EQ(windowed_of(64, 0), 48);
  EXPECT_EQ(windowed_of(64, 1), 48);
  EXPECT_EQ(windowed_of(63, 1), 0);
}

// The factors of the embedding, of a layer's attention and feed-forward, and of the logits.
TEST_F(UnsaidKeys, without_keys_the_factors_of_minicpm_are_those_of_its_models) {
  const auto scales_of = [&](const GgufWriter& file) {
    std::vector<float> scales;
    const auto model = build(file);
    EXPECT_TRUE(model.has_value()) << model.error().message;
    if (!model) return scales;
    for (const GraphNode& node : model->graph.nodes()) {
      if (node.operation == Operation::kScale) scales.push_back(node.scale);
    }
    return scales;
  };
  GgufWriter file = tiny_attention("minicpm");
  file.add("minicpm.feed_forward_length", uint32_t{96});
  file.add_tensor("blk.0.ffn_gate.weight", Format::kF32, {64, 96});
  file.add_tensor("blk.0.ffn_up.weight", Format::kF32, {64, 96});
  file.add_tensor("blk.0.ffn_down.weight", Format::kF32, {96, 64});
  EXPECT_THAT(scales_of(file), testing::ElementsAre(12, 1.4F, 1.4F, 4));
  file.add("minicpm.embedding_scale", 3.0F).add("minicpm.residual_scale", 0.5F);
  EXPECT_THAT(scales_of(file.add("minicpm.logit_scale", 4.0F)),
              testing::ElementsAre(3, 0.5F, 0.5F, 0.25F));
}

// Narrow layers of latent attention, the last with experts. No key says how these are chosen.
GgufWriter file_without_gating(uint32_t blocks, uint64_t vocabulary) {
  GgufWriter file;
  file.add("general.architecture", std::string("deepseek2"));
  using Number = std::pair<std::string, uint32_t>;
  for (const auto& [key, value] :
       {Number("block_count", blocks), Number("embedding_length", 32),
        Number("context_length", 128), Number("feed_forward_length", 32),
        Number("attention.head_count", 1), Number("attention.kv_lora_rank", 32),
        Number("rope.dimension_count", 32), Number("attention.key_length_mla", 64),
        Number("attention.value_length_mla", 32), Number("leading_dense_block_count", blocks - 1),
        Number("expert_count", 4), Number("expert_used_count", 2),
        Number("expert_feed_forward_length", 32)}) {
    file.add("deepseek2." + key, value);
  }
  file.add("deepseek2.attention.layer_norm_rms_epsilon", 1e-5F);
  const auto add = [&](const std::string& name, std::vector<uint64_t> dimensions) {
    const bool is_vector = dimensions.size() == 1;
    file.add_tensor(name, is_vector ? Format::kF32 : Format::kQ8_0, std::move(dimensions));
  };
  add("token_embd.weight", {32, vocabulary});
  add("output_norm.weight", {32});
  for (uint32_t layer = 0; layer < blocks; ++layer) {
    const std::string block = fmt::format("blk.{}.", layer);
    for (const char* const norm : {"attn_norm", "attn_kv_a_norm", "ffn_norm"}) {
      add(block + norm + ".weight", {32});
    }
    add(block + "attn_q.weight", {32, 64});
    add(block + "attn_kv_a_mqa.weight", {32, 64});
    add(block + "attn_k_b.weight", {32, 32, 1});
    add(block + "attn_v_b.weight", {32, 32, 1});
    add(block + "attn_output.weight", {32, 32});
    const bool has_experts = layer + 1 == blocks;
    if (has_experts) add(block + "ffn_gate_inp.weight", {32, 4});
    for (const char* const part : {"ffn_gate", "ffn_up", "ffn_down"}) {
      if (has_experts) {
        add(block + part + "_exps.weight", {32, 32, 4});
      } else {
        add(block + part + ".weight", {32, 32});
      }
    }
  }
  return file;
}

TEST_F(UnsaidKeys, experts_of_glm_flash_are_chosen_by_sigmoids_and_others_by_a_softmax) {
  const auto gating_of = [&](uint32_t blocks, uint64_t vocabulary) {
    const auto model = build(file_without_gating(blocks, vocabulary));
    EXPECT_TRUE(model.has_value()) << model.error().message;
    if (!model) return GatingFunction::kSqrtSoftplus;
    const auto& nodes = model->graph.nodes();
    return std::ranges::find(nodes, Operation::kRoute, &GraphNode::operation)->gating.function;
  };
  EXPECT_EQ(gating_of(47, 154880), GatingFunction::kSigmoid);
  EXPECT_EQ(gating_of(48, 154880), GatingFunction::kSigmoid);
  EXPECT_EQ(gating_of(27, 154880), GatingFunction::kSoftmax);
  EXPECT_EQ(gating_of(47, 512), GatingFunction::kSoftmax);
}

}  // namespace
}  // namespace lockstep
