// Hand-made bad files: each gives one error that names the file, the field or tensor, and what is
// wrong with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "tests/engine/model/gguf_samples.h"

namespace lockstep {
namespace {

using test::GgufWriter;
using testing::HasSubstr;
using testing::StartsWith;

struct BadFile {
  const char* name;
  std::function<void(GgufWriter&)> spoil;  // given a file with two keys and two tensors
  std::vector<const char*> error;          // what the message holds
};

template <typename T>
std::vector<std::byte> bytes_of(std::initializer_list<T> values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.begin(), bytes.size());
  return bytes;
}

// The element type and the count of an array, the count in two halves.
std::vector<std::byte> array_head(uint32_t type, uint64_t count) {
  return bytes_of<uint32_t>(
      {type, static_cast<uint32_t>(count), static_cast<uint32_t>(count >> 32)});
}

GgufWriter good() {
  GgufWriter writer;
  writer.add("general.architecture", std::string("llama")).add("answer", uint32_t{42});
  writer.add_tensor("first", Format::kQ4_0, {64, 4}).add_tensor("second", Format::kF32, {16});
  return writer;
}

const BadFile kBadFiles[] = {
    {"another_format",
     [](GgufWriter& file) { file.magic = "ggjt"; },
     {"the magic number at byte 0", "\"ggjt\"", "GGUF"}},
    {"unprintable_magic",
     [](GgufWriter& file) { file.magic = "\x7f\x45\x4c\x01"; },
     {"the magic number", "\"\\x7fEL\\x01\""}},
    {"version_0", [](GgufWriter& file) { file.version = 0; }, {"the version at byte 4: 0"}},
    {"version_1",
     [](GgufWriter& file) { file.version = 1; },
     {"the version at byte 4: 1", "2 and 3"}},
    {"version_4", [](GgufWriter& file) { file.version = 4; }, {"the version at byte 4: 4"}},
    {"big_endian", [](GgufWriter& file) { file.version = 0x03000000; }, {"big endian", "convert"}},
    {"more_tensors_than_there_are", [](GgufWriter& file) { file.tensor_count = 3; }, {"tensor"}},
    {"more_tensors_than_bytes",
     [](GgufWriter& file) { file.tensor_count = 1000; },
     {"the tensor count at byte 8: 1000", "space for"}},
    {"tensor_count_of_64_bits",
     [](GgufWriter& file) { file.tensor_count = ~uint64_t{0}; },
     {"the tensor count at byte 8: 18446744073709551615"}},
    {"metadata_count_of_64_bits",
     [](GgufWriter& file) { file.metadata_count = ~uint64_t{0}; },
     {"the metadata count at byte 16: 18446744073709551615"}},
    {"metadata_read_as_tensors", [](GgufWriter& file) { file.metadata_count = 1; }, {"tensor"}},
    {"empty_key", [](GgufWriter& file) { file.add("", uint8_t{1}); }, {"an empty key"}},
    {"key_twice",
     [](GgufWriter& file) { file.add("answer", 1.0f); },
     {"metadata \"answer\"", "twice"}},
    {"key_too_long",
     [](GgufWriter& file) { file.add(std::string(65536, 'k'), uint8_t{1}); },
     {"the key of metadata entry 2", "65536 bytes", "at most 65535"}},
    {"value_type_13",
     [](GgufWriter& file) { file.add_bytes("odd", 13, {}); },
     {"metadata \"odd\"", "value type 13"}},
    {"value_type_of_32_bits",
     [](GgufWriter& file) { file.add_bytes("odd", ~0u, {}); },
     {"metadata \"odd\"", "value type 4294967295"}},
    {"truth_value_2",
     [](GgufWriter& file) { file.add_bytes("odd", 7, bytes_of<uint8_t>({2})); },
     {"metadata \"odd\"", "a truth value of 2"}},
    {"truth_value_2_in_an_array",
     [](GgufWriter& file) {
       auto bytes = array_head(7, 2);
       bytes.insert(bytes.end(), {std::byte{1}, std::byte{2}});
       file.add_bytes("odd", 9, bytes);
     },
     {"metadata \"odd\"", "a truth value of 2"}},
    {"string_longer_than_the_file",
     [](GgufWriter& file) { file.add_bytes("odd", 8, bytes_of<uint64_t>({100000})); },
     {"metadata \"odd\"", "a string of 100000 bytes", "follow in the file"}},
    {"string_length_of_64_bits",
     [](GgufWriter& file) { file.add_bytes("odd", 8, bytes_of<uint64_t>({~uint64_t{0}})); },
     {"metadata \"odd\"", "a string of 18446744073709551615 bytes"}},
    {"string_beyond_the_bound",
     [](GgufWriter& file) { file.add("odd", std::string((1 << 24) + 1, 'v')); },
     {"metadata \"odd\"", "a string of 16777217 bytes", "at most 16777216"}},
    {"array_of_arrays",
     [](GgufWriter& file) { file.add_bytes("odd", 9, array_head(9, 1)); },
     {"metadata \"odd\"", "array of arrays"}},
    {"array_of_type_13",
     [](GgufWriter& file) { file.add_bytes("odd", 9, array_head(13, 1)); },
     {"metadata \"odd\"", "array element type 13"}},
    {"array_longer_than_the_file",
     [](GgufWriter& file) { file.add_bytes("odd", 9, array_head(8, 100000)); },
     {"metadata \"odd\"", "an array of 100000 elements", "space for"}},
    {"array_count_whose_bytes_overflow",
     [](GgufWriter& file) { file.add_bytes("odd", 9, array_head(11, uint64_t{1} << 61)); },
     {"metadata \"odd\"", "an array of 2305843009213693952 elements"}},
    {"array_beyond_the_bound",
     [](GgufWriter& file) {
       auto bytes = array_head(0, (1 << 24) + 1);
       bytes.resize(bytes.size() + (1 << 24) + 1);
       file.add_bytes("odd", 9, bytes);
     },
     {"metadata \"odd\"", "16777217 elements", "more than 16777216 in all"}},
    {"array_with_a_bad_string",
     [](GgufWriter& file) {
       auto bytes = array_head(8, 1);
       const auto length = bytes_of<uint64_t>({1 << 20});
       bytes.insert(bytes.end(), length.begin(), length.end());
       file.add_bytes("odd", 9, bytes);
     },
     {"metadata \"odd\"", "a string of 1048576 bytes"}},
    {"alignment_0",
     [](GgufWriter& file) { file.add("general.alignment", uint32_t{0}); },
     {"general.alignment", "the integer 0", "power of two"}},
    {"alignment_3",
     [](GgufWriter& file) { file.add("general.alignment", uint32_t{3}); },
     {"general.alignment", "the integer 3", "power of two"}},
    {"alignment_4",
     [](GgufWriter& file) { file.add("general.alignment", uint32_t{4}); },
     {"general.alignment", "the integer 4", "from 8"}},
    {"alignment_too_large",
     [](GgufWriter& file) { file.add("general.alignment", uint32_t{1} << 31); },
     {"general.alignment", "the integer 2147483648"}},
    {"alignment_is_text",
     [](GgufWriter& file) { file.add("general.alignment", std::string("32")); },
     {"general.alignment", "the string \"32\""}},
    {"alignment_negative",
     [](GgufWriter& file) { file.add("general.alignment", int32_t{-32}); },
     {"general.alignment", "-32"}},
    {"tensor_without_a_name",
     [](GgufWriter& file) { file.tensors[1].name = ""; },
     {"an empty name"}},
    {"tensor_name_too_long",
     [](GgufWriter& file) { file.tensors[1].name = std::string(65, 'n'); },
     {"the name of tensor 1", "65 bytes", "at most 64"}},
    {"tensor_twice",
     [](GgufWriter& file) { file.tensors[1].name = "first"; },
     {"tensor \"first\"", "twice"}},
    {"no_dimensions",
     [](GgufWriter& file) { file.tensors[1].dimension_count = 0; },
     {"tensor \"second\"", "0 dimensions", "1 to 4"}},
    {"five_dimensions",
     [](GgufWriter& file) {
       file.tensors[1].dimensions = {1, 1, 1, 1, 1};
     },
     {"tensor \"second\"", "5 dimensions"}},
    {"dimension_count_of_32_bits",
     [](GgufWriter& file) { file.tensors[1].dimension_count = ~0u; },
     {"tensor \"second\"", "4294967295 dimensions"}},
    {"dimension_0",
     [](GgufWriter& file) {
       file.tensors[1].dimensions = {16, 0};
     },
     {"tensor \"second\"", "dimension 1 is zero"}},
    {"experts_overflow",
     [](GgufWriter& file) {
       file.tensors[0].dimensions = {64, uint64_t{1} << 30, uint64_t{1} << 30};
     },
     {"tensor \"first\"", "more than 2^63 elements (64 x 1073741824 x 1073741824)"}},
    {"more_experts_than_bytes",
     [](GgufWriter& file) {
       file.tensors[0].dimensions = {64, 4, 1000};
     },
     {"tensor \"first\"", "144000 bytes", "cut short or damaged"}},
    {"no_experts",
     [](GgufWriter& file) {
       file.tensors[0].dimensions = {64, 4, 0};
     },
     {"tensor \"first\"", "dimension 2 is zero"}},
    {"dimensions_overflow",
     [](GgufWriter& file) {
       file.tensors[1].dimensions = {uint64_t{1} << 32, uint64_t{1} << 32, 1};
     },
     {"tensor \"second\"", "4294967296 x 4294967296 x 1"}},
    {"bytes_overflow",
     [](GgufWriter& file) { file.tensors[1].dimensions = {uint64_t{1} << 62}; },
     {"tensor \"second\"", "2^64 bytes"}},
    {"larger_than_the_file",
     [](GgufWriter& file) { file.tensors[1].dimensions = {uint64_t{1} << 40}; },
     {"tensor \"second\"", "4398046511104 bytes", "past the file's end"}},
    {"one_element_past_the_end",
     [](GgufWriter& file) { file.tensors[1].dimensions = {17}; },
     {"tensor \"second\"", "68 bytes", "past the file's end"}},
    {"half_a_block",
     [](GgufWriter& file) {
       file.tensors[0].dimensions = {48, 4};
     },
     {"tensor \"first\"", "rows of 48 elements", "blocks of 32 (Q4_0)"}},
    {"unknown_ggml_type",
     [](GgufWriter& file) { file.tensors[0].ggml_type = 9; },
     {"tensor \"first\"", "ggml type 9 (Q8_1)", "Q4_0, Q4_1"}},
    {"ggml_type_of_small_integers",
     [](GgufWriter& file) { file.tensors[0].ggml_type = 25; },
     {"tensor \"first\"", "ggml type 25 (I16) is not supported"}},
    {"integers_past_the_end",
     [](GgufWriter& file) { file.tensors[1].ggml_type = 27; },
     {"tensor \"second\"", "128 bytes", "past the file's end"}},
    {"ggml_type_of_a_quantization_that_is_interleaved",
     [](GgufWriter& file) { file.tensors[0].ggml_type = 36; },
     {"tensor \"first\"", "ggml type 36 (IQ4_NL_4_4) is not supported"}},
    {"ggml_type_of_32_bits",
     [](GgufWriter& file) { file.tensors[0].ggml_type = ~0u; },
     {"tensor \"first\"", "ggml type 4294967295 is not supported"}},
    {"offset_not_aligned",
     [](GgufWriter& file) { file.tensors[1].offset = 161; },
     {"tensor \"second\"", "161", "alignment 32"}},
    {"offset_past_the_end",
     [](GgufWriter& file) { file.tensors[1].offset = 1 << 20; },
     {"tensor \"second\"", "past the file's end"}},
    {"offset_overflows",
     [](GgufWriter& file) { file.tensors[1].offset = ~uint64_t{0} - 31; },
     {"tensor \"second\"", "past the file's end"}},
    {"tensors_at_the_same_place",
     [](GgufWriter& file) { file.tensors[1].offset = 0; },
     {"overlaps", "\"first\"", "\"second\""}},
    {"tensors_overlap",
     [](GgufWriter& file) { file.tensors[1].offset = 128; },
     {"tensor \"second\"", "overlaps tensor \"first\" of 144 bytes"}},
};

TEST(GgufBadFile, each_is_refused_with_an_error_that_names_what_is_wrong) {
  ASSERT_TRUE(test::parse(good().bytes()));
  for (const BadFile& bad : kBadFiles) {
    SCOPED_TRACE(bad.name);
    GgufWriter writer = good();
    bad.spoil(writer);
    const auto file = test::parse(writer.bytes());
    ASSERT_FALSE(file);
    EXPECT_EQ(file.error().kind, ErrorKind::kInvalidInput);
    EXPECT_THAT(file.error().message, StartsWith("sample.gguf: "));
    for (const char* part : bad.error) EXPECT_THAT(file.error().message, HasSubstr(part));
    EXPECT_LT(file.error().message.size(), 500u);
  }
}

TEST(GgufBadFile, a_name_that_cannot_be_printed_does_not_spoil_the_message) {
  GgufWriter writer = good();
  writer.tensors[0].name = std::string("a\nb\"\0\xff", 6);
  writer.tensors[0].ggml_type = 99;
  const auto file = test::parse(writer.bytes());
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error().message, HasSubstr(R"(tensor "a\x0ab\"\x00\xff" at byte)"));
}

// The offset in a message is where the value that is wrong stands in the file.
TEST(GgufBadFile, the_offset_in_the_message_is_that_of_the_field) {
  GgufWriter writer = good();
  writer.add_bytes("odd", 77, {});
  const auto bytes = writer.bytes();
  for (const auto& field : writer.fields()) {
    if (field.name != "odd type") continue;
    const auto file = test::parse(bytes);
    ASSERT_FALSE(file);
    EXPECT_THAT(file.error().message, HasSubstr(fmt::format("at byte {}:", field.offset)));
    return;
  }
  FAIL() << "the writer has no such field";
}

Error error_of_path(const std::filesystem::path& path) {
  const auto file = GgufFile::open(path);
  return file ? Error{} : file.error();
}

TEST(GgufBadFile, what_is_not_a_readable_file_is_refused_with_the_right_kind) {
  const test::Folder folder;
  std::ofstream(folder / "empty.gguf").close();
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  std::filesystem::create_symlink("loop", folder / "loop");
  const std::pair<std::filesystem::path, const char*> cases[] = {
      {folder / "", "is a directory"},
      {folder / "missing.gguf", "there is no such file"},
      {folder / "empty.gguf" / "below", "there is no such file"},
      {folder / "empty.gguf", "the file is empty"},
      {folder / "fifo", "is not a regular file"},
      {folder / "loop", "not a usable path"},
      {folder / std::string(300, 'x'), "not a usable path"},
      {"/dev/null", "is not a regular file"},
      {"", "the path of the model file is empty"},
      {std::string("a\0b", 3), "zero byte"},
  };
  for (const auto& [path, expected] : cases) {
    const Error error = error_of_path(path);
    EXPECT_THAT(error.message, HasSubstr(expected)) << path;
    EXPECT_EQ(error.kind, ErrorKind::kInvalidInput) << path;
  }
}

TEST(GgufBadFile, a_file_without_permission_is_the_machines_refusal) {
  if (::geteuid() == 0) GTEST_SKIP() << "the superuser may read everything";
  const test::Folder folder;
  good().write(folder / "secret.gguf");
  ASSERT_EQ(::chmod((folder / "secret.gguf").c_str(), 0), 0);
  const Error error = error_of_path(folder / "secret.gguf");
  EXPECT_EQ(error.kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(error.message, HasSubstr("permissions"));
}

}  // namespace
}  // namespace lockstep
