// What a file must say for a model to be built of it, and what is said of those that do not.
#include "engine/model/architecture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/engine/model/gguf_writer.h"

namespace lockstep {
namespace {

using test::GgufWriter;
using ::testing::HasSubstr;

// One layer, four heads of 16.
GgufWriter tiny_llama() {
  GgufWriter file;
  file.add("general.architecture", std::string("llama"));
  file.add("llama.block_count", uint32_t{1}).add("llama.embedding_length", uint32_t{64});
  file.add("llama.feed_forward_length", uint32_t{96}).add("llama.context_length", uint32_t{128});
  file.add("llama.attention.head_count", uint32_t{4});
  file.add("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  const auto add = [&](const char* name, uint64_t rows, uint64_t columns) {
    file.add_tensor(name, Format::kF32, {columns, rows});
  };
  add("token_embd.weight", 32, 64);
  for (const char* const norm : {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"}) {
    file.add_tensor(norm, Format::kF32, {64});
  }
  file.add_tensor("output_norm.weight", Format::kF32, {64});
  for (const char* const matrix : {"blk.0.attn_q.weight", "blk.0.attn_k.weight",
                                   "blk.0.attn_v.weight", "blk.0.attn_output.weight"}) {
    add(matrix, 64, 64);
  }
  add("blk.0.ffn_gate.weight", 96, 64);
  add("blk.0.ffn_up.weight", 96, 64);
  add("blk.0.ffn_down.weight", 64, 96);
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
    return build_model(*file);
  }

  std::string error_of(const GgufWriter& writer) {
    const auto model = build(writer);
    return model ? "" : model.error().message;
  }

  std::string path_;
};

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

TEST_F(ArchitectureTest, a_mixture_of_experts_is_refused_for_what_it_is) {
  GgufWriter mixture = tiny_llama().add("llama.expert_count", uint32_t{8});
  std::erase_if(mixture.tensors, [](const GgufWriter::Tensor& tensor) {
    return tensor.name == "blk.0.ffn_gate.weight";
  });
  EXPECT_EQ(error_of(mixture), "llama.expert_count is 8: mixtures of experts are not supported");
  EXPECT_EQ(error_of(tiny_llama().add("llama.expert_count", uint32_t{0})), "");
}

TEST_F(ArchitectureTest, a_scaling_factor_of_0_is_none) {
  const auto frequencies = [&](const GgufWriter& writer) {
    const auto model = build(writer);
    EXPECT_TRUE(model.has_value()) << model.error().message;
    return model ? model->graph.rotary_parameters().frequencies : std::vector<double>();
  };
  const auto plain = frequencies(tiny_llama());
  EXPECT_EQ(frequencies(tiny_llama().add("llama.rope.scaling.factor", 0.0F)), plain);
  EXPECT_EQ(frequencies(tiny_llama().add("llama.rope.scale_linear", 0.0F)), plain);
  EXPECT_NE(frequencies(tiny_llama().add("llama.rope.scaling.factor", 2.0F)), plain);
  EXPECT_THAT(error_of(tiny_llama().add("llama.rope.scaling.factor", -1.0F)),
              HasSubstr("rope.scaling.factor is -1; it must be above 0"));
}

}  // namespace
}  // namespace lockstep
