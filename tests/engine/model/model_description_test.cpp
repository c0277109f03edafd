#include "engine/model/model_description.h"

#include <gtest/gtest.h>

#include "tests/engine/model/gguf_samples.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

Json description(const test::GgufWriter& writer) {
  const auto file = test::parse(writer.bytes());
  if (!file) return file.error().message;
  return describe(*file);
}

TEST(ModelDescription, it_holds_the_metadata_and_the_tensors) {
  test::GgufWriter writer;
  writer.add("general.architecture", std::string("llama")).add("yes", true).add("f32", 0.5f);
  writer.add("i8", int8_t{-7}).add_array<bool>("bools", {true, false});
  writer.add_tensor("a", Format::kQ4_0, {64, 4}).add_tensor("b", Format::kF32, {3});
  writer.add_tensor("c", Format::kF32, {5});
  const Json result = description(writer);
  EXPECT_EQ(result["version"], 3);
  EXPECT_EQ(result["parts"], Json::parse(R"(["sample.gguf"])"));
  EXPECT_EQ(result["bytes"], writer.bytes().size());
  EXPECT_EQ(result["parameters"], 64 * 4 + 3 + 5);
  EXPECT_EQ(result["metadata"]["general.architecture"], "llama");
  EXPECT_EQ(result["metadata"]["yes"], true);
  EXPECT_EQ(result["metadata"]["f32"], 0.5);
  EXPECT_EQ(result["metadata"]["i8"], -7);
  EXPECT_EQ(result["metadata"]["bools"], Json::parse("[true, false]"));
  EXPECT_EQ(result["formats"]["F32"], Json::parse(R"({"tensors":2,"elements":8,"bytes":32})"));
  EXPECT_EQ(result["formats"]["Q4_0"], Json::parse(R"({"tensors":1,"elements":256,"bytes":144})"));
  EXPECT_EQ(result["formats"].size(), 2u);
  ASSERT_EQ(result["tensors"].size(), 3u);
  EXPECT_EQ(result["tensors"][0]["name"], "a");
  EXPECT_EQ(result["tensors"][0]["format"], "Q4_0");
  EXPECT_EQ(result["tensors"][0]["dimensions"], Json::parse("[64, 4]"));
  EXPECT_EQ(result["tensors"][0]["part"], 0);
  EXPECT_EQ(result["tensors"][0]["bytes"], 144);
}

TEST(ModelDescription, it_says_why_the_file_holds_no_model_that_can_be_run) {
  test::GgufWriter writer;
  const Json result = description(writer.add("general.architecture", std::string("qwen3vlm")));
  EXPECT_EQ(result["model"]["is_read"], false);
  EXPECT_TRUE(result["model"]["reason"].get<std::string>().starts_with(
      "architecture \"qwen3vlm\" is not known here; nearest are qwen3vl, qwen2vl, "));
}

TEST(ModelDescription, a_long_array_is_cut_to_its_first_elements_and_its_length) {
  test::GgufWriter writer;
  writer.add_array<uint32_t>("eight", {1, 2, 3, 4, 5, 6, 7, 8});
  writer.add_array<uint32_t>("nine", {1, 2, 3, 4, 5, 6, 7, 8, 9});
  const Json metadata = description(writer)["metadata"];
  EXPECT_EQ(metadata["eight"], Json::parse("[1, 2, 3, 4, 5, 6, 7, 8]"));
  EXPECT_EQ(metadata["nine"], Json::parse(R"({"length":9,"first":[1, 2, 3, 4, 5, 6, 7, 8]})"));
}

TEST(ModelDescription, text_that_is_not_utf8_can_still_be_written) {
  test::GgufWriter writer;
  writer.add("text", std::string("a\xff")).add("key\xfe", uint8_t{1});
  writer.add_tensor("t\xc0", Format::kF32, {1});
  const Json result = description(writer);
  EXPECT_EQ(result["metadata"]["text"], "a\xef\xbf\xbd");
  EXPECT_EQ(result["tensors"][0]["name"], "t\xef\xbf\xbd");
  EXPECT_NO_THROW(result.dump());
}

}  // namespace
}  // namespace lockstep
