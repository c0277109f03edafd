// Tiny model files, and what is built of them: for tests of architectures.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/model/architecture.h"
#include "tests/engine/model/gguf_writer.h"

namespace lockstep {

using test::GgufWriter;

// One layer, four heads of 16; no feed-forward. `blocks`: what the file says.
inline GgufWriter tiny_attention(const std::string& architecture, uint32_t blocks = 1) {
  GgufWriter file;
  file.add("general.architecture", architecture);
  file.add(architecture + ".block_count", blocks);
  file.add(architecture + ".embedding_length", uint32_t{64});
  file.add(architecture + ".context_length", uint32_t{128});
  file.add(architecture + ".attention.head_count", uint32_t{4});
  file.add(architecture + ".attention.layer_norm_rms_epsilon", 1e-5F);
  file.add_tensor("token_embd.weight", Format::kF32, {64, 32});
  for (const char* const norm :
       {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"}) {
    file.add_tensor(norm, Format::kF32, {64});
  }
  for (const char* const matrix : {"blk.0.attn_q.weight", "blk.0.attn_k.weight",
                                   "blk.0.attn_v.weight", "blk.0.attn_output.weight"}) {
    file.add_tensor(matrix, Format::kF32, {64, 64});
  }
  if (architecture.starts_with("qwen3")) {
    file.add_tensor("blk.0.attn_q_norm.weight", Format::kF32, {16});
    file.add_tensor("blk.0.attn_k_norm.weight", Format::kF32, {16});
  }
  return file;
}

inline GgufWriter tiny_llama(uint32_t blocks = 1) {
  GgufWriter file = tiny_attention("llama", blocks);
  file.add("llama.feed_forward_length", uint32_t{96});
  file.add_tensor("blk.0.ffn_gate.weight", Format::kF32, {64, 96});
  file.add_tensor("blk.0.ffn_up.weight", Format::kF32, {64, 96});
  file.add_tensor("blk.0.ffn_down.weight", Format::kF32, {96, 64});
  return file;
}

// Five experts of 40, two of them for a token.
inline GgufWriter tiny_router(const std::string& architecture) {
  GgufWriter file = tiny_attention(architecture);
  file.add(architecture + ".expert_count", uint32_t{5});
  file.add(architecture + ".expert_used_count", uint32_t{2});
  file.add(architecture + ".expert_feed_forward_length", uint32_t{40});
  file.add_tensor("blk.0.ffn_gate_inp.weight", Format::kF32, {64, 5});
  return file;
}

inline GgufWriter tiny_mixture(const std::string& architecture) {
  GgufWriter file = tiny_router(architecture);
  file.add_tensor("blk.0.ffn_gate_exps.weight", Format::kF32, {64, 40, 5});
  file.add_tensor("blk.0.ffn_up_exps.weight", Format::kF32, {64, 40, 5});
  file.add_tensor("blk.0.ffn_down_exps.weight", Format::kF16, {40, 64, 5});
  return file;
}

// With a tensor for each expert.
inline GgufWriter tiny_old_mixture() {
  GgufWriter file = tiny_router("llama");
  for (const std::string expert : {"0", "1", "2", "3", "4"}) {
    file.add_tensor("blk.0.ffn_gate." + expert + ".weight", Format::kF32, {64, 40});
    file.add_tensor("blk.0.ffn_up." + expert + ".weight", Format::kF32, {64, 40});
    file.add_tensor("blk.0.ffn_down." + expert + ".weight", Format::kF16, {40, 64});
  }
  return file;
}

inline GgufWriter without(GgufWriter file, std::string_view tensor) {
  std::erase_if(file.tensors, [&](const auto& each) { return each.name == tensor; });
  return file;
}

class ArchitectureTest : public ::testing::Test {
 protected:
  ArchitectureTest()
      : path_(::testing::TempDir() + "lockstep-architecture-" + std::to_string(getpid()) +
              ".gguf") {}
  ~ArchitectureTest() override { std::filesystem::remove(path_); }

  Result<Model> build(const GgufWriter& writer) {
    writer.write(path_);
    const auto file = GgufFile::open(path_);
    if (!file) return std::unexpected(file.error());
    return build_model({.file = *file});
  }

  std::string error_of(const GgufWriter& writer) {
    const auto model = build(writer);
    return model ? "" : model.error().message;
  }

  // The place where the experts of "gate", "up" and "down" are expected: tensor and first row.
  using Place = std::function<std::pair<std::string, size_t>(std::string part, size_t expert)>;

  static void expect_places(const Graph& graph, const GraphNode& node, const std::string& part,
                            const Place& place) {
    ASSERT_EQ(node.experts.size(), 5U);
    for (size_t expert = 0; expert < 5; ++expert) {
      const Weight& weight = graph.weights()[node.experts[expert]];
      EXPECT_EQ(std::pair(weight.name, weight.first_row), place(part, expert));
      EXPECT_EQ(weight.rows, part == "down" ? 64U : 40U);
      EXPECT_EQ(weight.columns, part == "down" ? 40U : 64U);
      EXPECT_EQ(weight.format, part == "down" ? Format::kF16 : Format::kF32);
    }
  }

  // h = norm(x); routing = route(router * h);
  // x + sum(down * (silu(gate * h) * (up * h)), weighed as routed)
  void expect_experts(const GgufWriter& writer, const Place& place) {
    const auto model = build(writer);
    ASSERT_TRUE(model.has_value()) << model.error().message;
    const Graph& graph = model->graph;
    const auto& nodes = graph.nodes();
    const auto found = std::ranges::find(nodes, Operation::kRoute, &GraphNode::operation);
    ASSERT_TRUE(found != nodes.end());
    const auto at = static_cast<size_t>(found - nodes.begin());
    const std::span layer = std::span(nodes).subspan(at - 2, 8);
    const auto& [norm, router, route, gate, up, multiply, down, add] =
        std::tie(layer[0], layer[1], layer[2], layer[3], layer[4], layer[5], layer[6], layer[7]);

    EXPECT_EQ(norm.operation, Operation::kRmsNorm);
    EXPECT_EQ(graph.weights()[router.weight].name, "blk.0.ffn_gate_inp.weight");
    EXPECT_EQ(router.inputs, (std::vector{norm.output}));
    EXPECT_EQ(route.inputs, (std::vector{router.output}));
    EXPECT_EQ(route.expert_count, 5U);
    EXPECT_EQ(route.chosen_count, 2U);
    for (const GraphNode* node : {&gate, &up}) {
      EXPECT_EQ(node->operation, Operation::kExpertMatmul);
      EXPECT_EQ(node->inputs, (std::vector{norm.output, route.output}));
    }
    EXPECT_EQ(multiply.operation, Operation::kGate);
    EXPECT_EQ(multiply.activation, ActivationFunction::kSilu);
    EXPECT_EQ(multiply.inputs, (std::vector{gate.output, up.output}));
    EXPECT_EQ(down.operation, Operation::kExpertSum);
    EXPECT_EQ(down.inputs, (std::vector{multiply.output, route.output}));
    EXPECT_EQ(add.operation, Operation::kAdd);
    EXPECT_EQ(add.inputs, (std::vector{norm.inputs[0], down.output}));
    expect_places(graph, gate, "gate", place);
    expect_places(graph, up, "up", place);
    expect_places(graph, down, "down", place);
  }

  std::string path_;
};

}  // namespace lockstep
