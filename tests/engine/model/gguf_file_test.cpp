// The parser on good files: hand-made ones, and real ones as the gguf package reads them
// (tests/fixtures/make_gguf_headers.py).
#include "engine/model/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "engine/base/json.h"
#include "tests/engine/model/gguf_samples.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

using test::GgufWriter;
using testing::ElementsAre;
using testing::HasSubstr;

GgufFile parsed_sample() {
  auto file = test::parse(test::sample().bytes());
  if (!file) throw std::runtime_error(file.error().message);
  return std::move(*file);
}

TEST(GgufFile, scalars_of_every_type_are_read) {
  const GgufFile file = parsed_sample();
  EXPECT_EQ(*file.integer("u8"), 200u);
  EXPECT_EQ(*file.number("i8"), -100.0);
  EXPECT_EQ(*file.integer("u16"), 60000u);
  EXPECT_EQ(*file.number("i16"), -30000.0);
  EXPECT_EQ(*file.integer("u32"), 4000000000u);
  EXPECT_EQ(*file.number("i32"), -2000000000.0);
  EXPECT_EQ(*file.integer("u64"), 18000000000000000000u);
  EXPECT_EQ(*file.number("i64"), -9e18);
  EXPECT_EQ(*file.number("f32"), 0.5);
  EXPECT_EQ(*file.number("f64"), 0.1);
  EXPECT_EQ(*file.boolean("yes"), true);
  EXPECT_EQ(*file.boolean("no"), false);
  EXPECT_EQ(*file.text("general.architecture"), "llama");
}

TEST(GgufFile, arrays_of_every_type_are_read) {
  const GgufFile file = parsed_sample();
  EXPECT_THAT(**file.integers("u8s"), ElementsAre(1, 255));
  EXPECT_THAT(**file.integers("i8s"), ElementsAre(-128, 127));
  EXPECT_THAT(**file.integers("u16s"), ElementsAre(1, 65535));
  EXPECT_THAT(**file.integers("i16s"), ElementsAre(-32768, 32767));
  EXPECT_THAT(**file.integers("u32s"), ElementsAre(1, 4294967295));
  EXPECT_THAT(**file.integers("i32s"), ElementsAre(-2147483647, 2147483647));
  EXPECT_THAT(**file.integers("i64s"), ElementsAre(-9000000000000000000, 9000000000000000000));
  EXPECT_THAT(**file.numbers("f32s"), ElementsAre(-1.5f, 2.25f));
  EXPECT_THAT(**file.numbers("f64s"), ElementsAre(0.1f, -0.2f));
  EXPECT_THAT(**file.numbers("i8s"), ElementsAre(-128.0f, 127.0f));
  EXPECT_THAT(**file.texts("strings"), ElementsAre("", "a", std::string("b\0c", 3), "\xff\xfe"));
  EXPECT_TRUE((*file.texts("none"))->empty());
  const auto& bools = std::get<GgufArray>(file.metadata().find("bools")->second);
  EXPECT_THAT(std::get<std::vector<bool>>(bools), ElementsAre(true, false, true));
}

TEST(GgufFile, an_absent_key_is_not_an_error) {
  const GgufFile file = parsed_sample();
  EXPECT_EQ(*file.text("absent"), std::nullopt);
  EXPECT_EQ(*file.integer("absent"), std::nullopt);
  EXPECT_EQ(*file.number("absent"), std::nullopt);
  EXPECT_EQ(*file.boolean("absent"), std::nullopt);
  EXPECT_EQ(*file.texts("absent"), nullptr);
  EXPECT_EQ(*file.numbers("absent"), std::nullopt);
  EXPECT_EQ(*file.integers("absent"), std::nullopt);
}

template <typename T>
std::string error_of(const Result<T>& result) {
  return result ? "no error" : result.error().message;
}

TEST(GgufFile, a_key_of_another_type_is_an_error_that_says_what_is_there) {
  const GgufFile file = parsed_sample();
  EXPECT_EQ(error_of(file.text("u8")),
            "sample.gguf: metadata \"u8\" is the integer 200; it must be a string");
  EXPECT_THAT(error_of(file.integer("general.architecture")), HasSubstr("the string \"llama\""));
  EXPECT_THAT(error_of(file.integer("i8")), HasSubstr("the integer -100"));
  EXPECT_THAT(error_of(file.integer("f32")), HasSubstr("the number 0.5"));
  EXPECT_THAT(error_of(file.integer("yes")), HasSubstr("is true; it must be an integer"));
  EXPECT_THAT(error_of(file.number("strings")), HasSubstr("an array of 4 strings"));
  EXPECT_THAT(error_of(file.boolean("u8")), HasSubstr("must be true or false"));
  EXPECT_THAT(error_of(file.texts("general.architecture")), HasSubstr("an array of strings"));
  EXPECT_THAT(error_of(file.texts("f32s")), HasSubstr("an array of 2 floating-point numbers"));
  EXPECT_THAT(error_of(file.numbers("bools")), HasSubstr("an array of 3 truth values"));
  EXPECT_THAT(error_of(file.integers("f64s")), HasSubstr("must be an array of integers"));
  EXPECT_THAT(error_of(file.integers("bools")), HasSubstr("must be an array of integers"));
  EXPECT_THAT(error_of(file.integers("u64s")), HasSubstr("element 1 is 18000000000000000000"));
}

TEST(GgufFile, tensors_lie_where_the_writer_put_their_bytes) {
  const GgufWriter writer = test::sample();
  const std::vector<std::byte> bytes = writer.bytes();
  const auto file = test::parse(bytes);
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tensors().size(), writer.tensors.size());
  for (size_t index = 0; index < writer.tensors.size(); ++index) {
    const GgufWriter::Tensor& written = writer.tensors[index];
    const GgufTensor& read = file->tensors()[index];
    EXPECT_EQ(read.name, written.name);
    EXPECT_EQ(traits(read.format).ggml_type, written.ggml_type);
    EXPECT_EQ(read.dimensions, written.dimensions);
    ASSERT_EQ(read.size_bytes, written.data.size());
    EXPECT_EQ(read.offset % 32, 0u);
    EXPECT_EQ(std::memcmp(bytes.data() + read.offset, written.data.data(), read.size_bytes), 0);
  }
  EXPECT_EQ(file->find_tensor("four")->rows(), 12u);
  EXPECT_EQ(file->find_tensor("vector")->rows(), 1u);
  EXPECT_EQ(file->find_tensor("nobody"), nullptr);
  ASSERT_EQ(file->find_tensors("fo").size(), 1u);
  EXPECT_EQ(file->find_tensors("fo").front(), file->find_tensor("four"));
  EXPECT_EQ(file->find_tensors("").size(), file->tensors().size());
  EXPECT_TRUE(file->find_tensors("fours").empty());
  EXPECT_EQ(file->size_bytes(), bytes.size());
  test::expect_consistent(*file, bytes.size());
}

TEST(GgufFile, tensors_of_whole_numbers_stand_apart_and_are_read) {
  GgufWriter writer = test::sample();
  const std::vector<int64_t> large = {3, -1, int64_t{1} << 60};
  test::add_integers<int64_t>(writer, "large", large);
  test::add_integers<int32_t>(writer, "small", {7, -8, 2147483647});
  const test::Folder folder;
  writer.write(folder / "file.gguf");
  const auto file = GgufFile::open(folder / "file.gguf");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->tensors().size() + 2, writer.tensors.size());
  EXPECT_EQ(file->integer_tensors().size(), 2U);
  EXPECT_EQ(file->read_integers("large").value(), large);
  EXPECT_EQ(file->read_integers("small").value(), (std::vector<int64_t>{7, -8, 2147483647}));
  EXPECT_EQ(file->read_integers("vector").value(), std::nullopt);
  EXPECT_EQ(file->find_tensor("large"), nullptr);
  test::expect_consistent(*file, writer.bytes().size());
}

TEST(GgufFile, every_allowed_alignment_is_used) {
  for (uint32_t alignment = 8; alignment <= 1u << 20; alignment *= 2) {
    GgufWriter writer;
    writer.alignment = alignment;
    writer.add("general.alignment", alignment);
    writer.add_tensor("a", Format::kF32, {3}).add_tensor("b", Format::kF32, {3});
    const auto file = test::parse(writer.bytes());
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->tensors()[0].offset % alignment, 0u);
    EXPECT_EQ(file->tensors()[1].offset - file->tensors()[0].offset,
              (12 + uint64_t{alignment} - 1) / alignment * alignment);
  }
}

TEST(GgufFile, version_2_is_read_like_version_3) {
  GgufWriter writer = test::sample();
  writer.version = 2;
  const auto file = test::parse(writer.bytes());
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->version(), 2u);
  EXPECT_EQ(file->tensors().size(), writer.tensors.size());
}

TEST(GgufFile, a_file_and_its_bytes_in_memory_give_the_same) {
  const test::Folder folder;
  test::sample().write(folder / "sample.gguf");
  const auto file = GgufFile::open(folder / "sample.gguf");
  ASSERT_TRUE(file) << file.error().message;
  const GgufFile memory = parsed_sample();
  EXPECT_EQ(file->metadata(), memory.metadata());
  EXPECT_EQ(file->size_bytes(), memory.size_bytes());
  ASSERT_EQ(file->tensors().size(), memory.tensors().size());
  for (size_t index = 0; index < memory.tensors().size(); ++index) {
    EXPECT_EQ(file->tensors()[index].offset, memory.tensors()[index].offset);
  }
  EXPECT_THAT(file->parts(), ElementsAre(folder / "sample.gguf"));
}

// A string of every length around the reader's buffer, so that reads cross its border everywhere.
TEST(GgufFile, values_that_cross_the_buffers_border_are_whole) {
  for (const size_t length : {262000u, 262100u, 262143u, 262144u, 262145u, 800000u}) {
    std::string text(length, 'x');
    for (size_t index = 0; index < length; ++index) text[index] = static_cast<char>(index % 251);
    GgufWriter writer;
    writer.add("text", text).add("after", uint32_t{7}).add_tensor("a", Format::kF32, {3});
    const auto file = test::parse(writer.bytes());
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(*file->text("text"), text);
    EXPECT_EQ(*file->integer("after"), 7u);
  }
}

// The same digest as the fixture's: FNV-1a over the strings, each followed by a zero byte.
uint64_t digest(const std::vector<std::string>& texts) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3; };
  for (const std::string& text : texts) {
    for (const char character : text) add(static_cast<unsigned char>(character));
    add(0);
  }
  return hash;
}

void expect_value(const GgufFile& file, const std::string& key, const nlohmann::json& expected) {
  SCOPED_TRACE(key);
  if (expected.is_string()) {
    EXPECT_EQ(*file.text(key), expected.get<std::string>());
  } else if (expected.is_boolean()) {
    EXPECT_EQ(*file.boolean(key), expected.get<bool>());
  } else if (expected.is_number()) {
    EXPECT_EQ(*file.number(key), expected.get<double>());
  } else if (expected.contains("digest")) {
    const auto texts = file.texts(key);
    ASSERT_TRUE(texts && *texts != nullptr);
    EXPECT_EQ((*texts)->size(), expected["length"].get<size_t>());
    EXPECT_EQ(digest(**texts), expected["digest"].get<uint64_t>());
  } else {
    const auto numbers = file.numbers(key);
    ASSERT_TRUE(numbers && *numbers);
    EXPECT_EQ((*numbers)->size(), expected["length"].get<size_t>());
    double sum = 0;
    for (const float number : **numbers) sum += number;
    EXPECT_EQ(sum, expected["sum"].get<double>());
  }
}

TEST(GgufFile, real_files_read_as_the_gguf_package_reads_them) {
  std::ifstream fixture(source_dir() + "/tests/fixtures/gguf_headers.json");
  const auto expected = nlohmann::json::parse(fixture);
  ASSERT_GE(expected.size(), 8u);
  for (const auto& [name, header] : expected.items()) {
    SCOPED_TRACE(name);
    const auto file = GgufFile::open(std::filesystem::path(source_dir()) / name);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->version(), header["version"].get<uint32_t>());
    EXPECT_EQ(file->metadata().size(), header["metadata"].size());
    for (const auto& [key, value] : header["metadata"].items()) expect_value(*file, key, value);
    ASSERT_EQ(file->tensors().size(), header["tensors"].size());
    for (size_t index = 0; index < file->tensors().size(); ++index) {
      const GgufTensor& tensor = file->tensors()[index];
      const auto& wanted = header["tensors"][index];
      EXPECT_EQ(tensor.name, wanted["name"].get<std::string>());
      EXPECT_EQ(traits(tensor.format).name, wanted["format"].get<std::string>());
      EXPECT_EQ(tensor.dimensions, wanted["dimensions"].get<std::vector<uint64_t>>());
      EXPECT_EQ(tensor.offset, wanted["offset"].get<uint64_t>());
      EXPECT_EQ(tensor.size_bytes, wanted["bytes"].get<uint64_t>());
    }
  }
}

}  // namespace
}  // namespace lockstep
