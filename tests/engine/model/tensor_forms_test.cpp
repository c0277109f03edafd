// How a graph's weights lie in the file's tensors, and which tensors it does without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/engine/model/architecture_case.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// name, first row, rows of each of a graph's products and of their biases, in the graph's order.
using Places = std::vector<std::tuple<std::string, size_t, size_t>>;

Places places_of(const Graph& graph, size_t count) {
  Places places;
  for (const GraphNode& node : graph.nodes()) {
    if (node.operation != Operation::kMatmul || places.size() >= count) continue;
    for (const WeightId id : {node.weight, node.bias}) {
      if (id == kNone) continue;
      const Weight& weight = graph.weights()[id];
      places.emplace_back(weight.name, weight.first_row,
                          weight.is_matrix ? weight.rows : weight.columns);
    }
  }
  return places;
}

TEST_F(ArchitectureTest, one_tensor_may_hold_queries_keys_and_values_or_gate_and_up) {
  GgufWriter file = tiny_llama();
  for (const char* const name : {"attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"}) {
    file = without(file, "blk.0." + std::string(name) + ".weight");
  }
  file.add("llama.attention.head_count_kv", uint32_t{2});
  file.add_tensor("blk.0.attn_qkv.weight", Format::kF32, {64, 128});
  file.add_tensor("blk.0.attn_qkv.bias", Format::kF32, {128});
  file.add_tensor("blk.0.ffn_up.weight", Format::kF32, {64, 192});
  const auto model = build(file);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const std::string weight = "blk.0.attn_qkv.weight";
  const std::string bias = "blk.0.attn_qkv.bias";
  EXPECT_EQ(places_of(model->graph, 9), (Places{{weight, 0, 64},
                                                {bias, 0, 64},
                                                {weight, 64, 32},
                                                {bias, 64, 32},
                                                {weight, 96, 32},
                                                {bias, 96, 32},
                                                {"blk.0.attn_output.weight", 0, 64},
                                                {"blk.0.ffn_up.weight", 0, 96},
                                                {"blk.0.ffn_up.weight", 96, 96}}));

  GgufWriter wrong = without(file, weight);
  EXPECT_EQ(
      error_of(wrong.add_tensor(weight, Format::kF32, {64, 120})),
      "tensor blk.0.attn_qkv.weight has 120 rows of 64; the metadata makes it 128 rows of 64");
  GgufWriter gateless = without(tiny_llama(), "blk.0.ffn_gate.weight");
  EXPECT_EQ(error_of(gateless), "tensor blk.0.ffn_gate.weight is missing");
}

TEST_F(ArchitectureTest, a_tensor_may_hold_the_gates_and_ups_of_all_experts) {
  GgufWriter file = without(tiny_mixture("qwen3moe"), "blk.0.ffn_gate_exps.weight");
  file = without(file, "blk.0.ffn_up_exps.weight");
  file.add_tensor("blk.0.ffn_gate_up_exps.weight", Format::kF32, {64, 80, 5});
  expect_experts(file, [](const std::string& part, size_t expert) {
    return part == "down" ? std::pair(std::string("blk.0.ffn_down_exps.weight"), expert * 64)
                          : std::pair(std::string("blk.0.ffn_gate_up_exps.weight"),
                                      expert * 80 + (part == "up" ? 40 : 0));
  });
}

// Two blocks, the last of which predicts further tokens.
GgufWriter tiny_prediction() {
  return tiny_llama(2).add("llama.nextn_predict_layers", uint32_t{1});
}

// The scales of a graph's matrices that have one, by name and first row.
using Scales = std::map<std::pair<std::string, size_t>, float>;

Scales scales_of(const Graph& graph) {
  Scales scales;
  for (const Weight& weight : graph.weights()) {
    if (weight.scale != 1) scales[{weight.name, weight.first_row}] = weight.scale;
  }
  return scales;
}

TEST_F(ArchitectureTest, a_matrix_may_have_a_scale_and_each_expert_its_own) {
  GgufWriter file = tiny_mixture("llama");
  file.add_tensor("output.weight", Format::kF32, {64, 32});
  file.add_tensor("output.scale", {1}, std::vector{0.5F});
  file.add_tensor("blk.0.attn_k.scale", {1}, std::vector{-2.0F});
  file.add_tensor("blk.0.ffn_gate_inp.scale", {1}, std::vector{0.0F});
  file.add_tensor("blk.0.ffn_down_exps.scale", {5}, std::vector{2.0F, 3.0F, 1.0F, -4.0F, 0.0F});
  const auto model = build(file);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const std::string down = "blk.0.ffn_down_exps.weight";
  EXPECT_EQ(scales_of(model->graph), (Scales{{{"output.weight", 0}, 0.5F},
                                             {{"blk.0.attn_k.weight", 0}, -2.0F},
                                             {{"blk.0.ffn_gate_inp.weight", 0}, 0.0F},
                                             {{down, 0}, 2.0F},
                                             {{down, 64}, 3.0F},
                                             {{down, 192}, -4.0F},
                                             {{down, 256}, 0.0F}}));
}

TEST_F(ArchitectureTest, scales_of_another_shape_or_that_are_no_numbers_are_named) {
  const auto error = [&](const std::string& name, const std::vector<float>& values) {
    return error_of(tiny_mixture("llama").add_tensor(name, {values.size()}, values));
  };
  const std::string query = "blk.0.attn_q.scale";
  const std::string experts = "blk.0.ffn_up_exps.scale";
  EXPECT_EQ(error(query, {1, 2}),
            "tensor blk.0.attn_q.scale is 2; expected 1: one scale for each matrix of "
            "blk.0.attn_q.weight");
  EXPECT_EQ(error(experts, {3}),
            "tensor blk.0.ffn_up_exps.scale is 1; expected 5: one scale for each matrix of "
            "blk.0.ffn_up_exps.weight");
  EXPECT_EQ(error(query, {std::numeric_limits<float>::quiet_NaN()}),
            "blk.0.attn_q.scale holds nan at 0; it must be finite");
  EXPECT_EQ(error(experts, {1, 2, -std::numeric_limits<float>::infinity(), 4, 5}),
            "blk.0.ffn_up_exps.scale holds -inf at 2; it must be finite");
  // Scales of a tensor that no product reads, or that is not there.
  for (const std::string name : {"token_embd.scale", "output.scale", "blk.0.attn_norm.scale"}) {
    EXPECT_THAT(error(name, {2}), HasSubstr(name + "\" has no place in this architecture"));
  }
}

TEST_F(ArchitectureTest, scales_of_inputs_are_named_and_not_loaded) {
  GgufWriter file = tiny_llama();
  file.add_tensor("blk.0.attn_q.input_scale", {1}, std::vector{0.5F});
  const auto model = build(file);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  ASSERT_EQ(model->left_out.size(), 1U);
  EXPECT_EQ(model->left_out[0].part, "scales of products' inputs, for arithmetic that is not used");
}

TEST_F(ArchitectureTest, blocks_that_predict_further_tokens_are_named_and_not_loaded) {
  const auto plain = build(tiny_llama());
  ASSERT_TRUE(plain.has_value()) << plain.error().message;
  EXPECT_TRUE(plain->left_out.empty());

  GgufWriter file = tiny_prediction();
  file.add_tensor("blk.1.nextn.eh_proj.weight", Format::kF32, {128, 64});
  file.add_tensor("blk.1.attn_norm.weight", Format::kF32, {64});
  const auto model = build(file);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ(model->layer_count, 1U);
  EXPECT_EQ(model->graph.weights().size(), plain->graph.weights().size());
  EXPECT_EQ(model->graph.nodes().size(), plain->graph.nodes().size());
  ASSERT_EQ(model->left_out.size(), 1U);
  EXPECT_EQ(model->left_out[0].part, "block 1, which predicts further tokens (MTP)");
  EXPECT_EQ(model->left_out[0].tensors, 2U);
  EXPECT_EQ(model->left_out[0].bytes, (128 * 64 + 64) * sizeof(float));

  // Nor does llama have such blocks.
  const auto opened = GgufFile::parse(file.bytes(), "tiny");
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  EXPECT_EQ(build_predicting_block({.file = *opened}, 0).error().message,
            "blocks that predict further tokens are not known of architecture llama");
  // A file may name such blocks and lack them; a block beyond those it names has no place.
  EXPECT_EQ(error_of(tiny_prediction()), "");
  EXPECT_THAT(error_of(file.add_tensor("blk.2.attn_norm.weight", Format::kF32, {64})),
              HasSubstr("tensor \"blk.2.attn_norm.weight\" has no place"));
  EXPECT_EQ(error_of(tiny_llama().add("llama.nextn_predict_layers", uint32_t{1})),
            "llama.block_count is 1 and nextn_predict_layers 1: no layers are left");
}

TEST_F(ArchitectureTest, encoders_of_images_and_sound_are_named_and_not_loaded) {
  GgufWriter file = tiny_llama();
  file.add_tensor("v.blk.0.attn_q.weight", Format::kF32, {64, 64});
  file.add_tensor("v.patch_embd.weight", Format::kF32, {64});
  file.add_tensor("mm.0.weight", Format::kF32, {64, 64});
  const auto model = build(file);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  ASSERT_EQ(model->left_out.size(), 2U);
  EXPECT_EQ(model->left_out[0].part, "the encoder of images");
  EXPECT_EQ(model->left_out[0].tensors, 2U);
  EXPECT_EQ(model->left_out[1].part, "the projector of images or sound");
  EXPECT_THAT(error_of(tiny_llama().add_tensor("blk.0.attn_sinks.weight", Format::kF32, {4})),
              HasSubstr("\"blk.0.attn_sinks.weight\" has no place in this architecture"));
}

// Nothing that is computed depends on a name that no model computes with; of a block, or of such a
// name, it may.
TEST_F(ArchitectureTest, names_that_no_model_computes_with_are_left_out) {
  GgufWriter file = tiny_llama();
  file.add_tensor("training.step", Format::kF32, {1});
  file.add_tensor("training.loss", Format::kF32, {4});
  const auto model = build(file);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  ASSERT_EQ(model->left_out.size(), 1U);
  EXPECT_EQ(model->left_out[0].part, "names that no model computes with");
  EXPECT_EQ(model->left_out[0].tensors, 2U);
  for (const std::string name :
       {"output_gate.weight", "token_types.weight", "position_embd.weight", "blk.0.notes"}) {
    EXPECT_THAT(error_of(tiny_llama().add_tensor(name, Format::kF32, {4})),
                HasSubstr(name + "\" has no place in this architecture"));
  }
}

}  // namespace
}  // namespace lockstep
