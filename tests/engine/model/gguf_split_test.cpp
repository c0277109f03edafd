// Split files: PREFIX-0000i-of-0000N.gguf.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/model/gguf_samples.h"

namespace lockstep {
namespace {

using test::GgufWriter;
using testing::ElementsAre;
using testing::HasSubstr;

// Part `number` (from 0) of `count`, with one tensor "tensor.NUMBER" and a key of its own.
GgufWriter part(uint16_t number, uint16_t count) {
  GgufWriter writer;
  writer.add("split.no", number).add("split.count", count);
  writer.add("split.tensors.count", static_cast<int32_t>(count));
  writer.add("from", uint32_t{number});
  writer.add_tensor(fmt::format("tensor.{}", number), Format::kF32, {4u + number});
  return writer;
}

std::string name_of(uint32_t number, uint32_t count) {
  return fmt::format("model-{:05}-of-{:05}.gguf", number + 1, count);
}

void write_parts(const test::Folder& folder, uint16_t count) {
  for (uint16_t number = 0; number < count; ++number) {
    part(number, count).write(folder / name_of(number, count));
  }
}

std::string error_of(const std::filesystem::path& path) {
  const auto file = GgufFile::open(path);
  if (file) return "no error";
  EXPECT_EQ(file.error().kind, ErrorKind::kInvalidInput);
  return file.error().message;
}

TEST(GgufSplit, the_first_part_opens_the_tensors_of_all) {
  const test::Folder folder;
  write_parts(folder, 3);
  const auto file = GgufFile::open(folder / name_of(0, 3));
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 3u);
  uint64_t size = 0;
  for (uint32_t number = 0; number < 3; ++number) {
    const GgufTensor* tensor = file->find_tensor(fmt::format("tensor.{}", number));
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->part, number);
    EXPECT_EQ(tensor->columns(), 4 + number);
    size += std::filesystem::file_size(folder / name_of(number, 3));
  }
  EXPECT_EQ(file->size_bytes(), size);
  EXPECT_EQ(*file->integer("from"), 0u) << "the first part's metadata counts";
  EXPECT_THAT(file->parts(),
              ElementsAre(folder / name_of(0, 3), folder / name_of(1, 3), folder / name_of(2, 3)));
}

TEST(GgufSplit, a_set_of_one_part_is_a_whole_file_under_any_name) {
  const test::Folder folder;
  part(0, 1).write(folder / "any.gguf");
  const auto file = GgufFile::open(folder / "any.gguf");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->tensors().size(), 1u);
}

TEST(GgufSplit, any_other_part_is_refused_with_the_first_ones_name) {
  const test::Folder folder;
  write_parts(folder, 3);
  const std::string error = error_of(folder / name_of(1, 3));
  EXPECT_THAT(error, HasSubstr("part 2 of 3"));
  EXPECT_THAT(error, HasSubstr((folder / name_of(0, 3)).string()));
}

TEST(GgufSplit, a_missing_part_is_named) {
  const test::Folder folder;
  write_parts(folder, 3);
  std::filesystem::remove(folder / name_of(2, 3));
  EXPECT_THAT(error_of(folder / name_of(0, 3)),
              HasSubstr("model-00003-of-00003.gguf: there is no"));
}

TEST(GgufSplit, a_renamed_first_part_is_refused) {
  const test::Folder folder;
  write_parts(folder, 2);
  std::filesystem::rename(folder / name_of(0, 2), folder / "model.gguf");
  EXPECT_THAT(error_of(folder / "model.gguf"), HasSubstr("-00001-of-00002.gguf"));
}

TEST(GgufSplit, parts_in_each_others_place_are_refused) {
  const test::Folder folder;
  write_parts(folder, 3);
  std::filesystem::copy_file(folder / name_of(1, 3), folder / name_of(2, 3),
                             std::filesystem::copy_options::overwrite_existing);
  const std::string error = error_of(folder / name_of(0, 3));
  EXPECT_THAT(error,
              HasSubstr("model-00003-of-00003.gguf: metadata \"split.no\" is the integer 1"));
}

TEST(GgufSplit, a_part_that_does_not_know_its_place_is_refused) {
  const test::Folder folder;
  write_parts(folder, 2);
  GgufWriter().add_tensor("tensor.1", Format::kF32, {5}).write(folder / name_of(1, 2));
  EXPECT_THAT(error_of(folder / name_of(0, 2)), HasSubstr("\"split.no\" is missing"));
}

TEST(GgufSplit, a_part_of_a_set_of_another_size_is_refused) {
  const test::Folder folder;
  write_parts(folder, 2);
  part(1, 5).write(folder / name_of(1, 2));
  EXPECT_THAT(error_of(folder / name_of(0, 2)), HasSubstr("\"split.count\" is the integer 5"));
}

TEST(GgufSplit, a_tensor_in_two_parts_is_refused) {
  const test::Folder folder;
  write_parts(folder, 2);
  GgufWriter second = part(1, 2);
  second.tensors[0].name = "tensor.0";
  second.write(folder / name_of(1, 2));
  const std::string error = error_of(folder / name_of(0, 2));
  EXPECT_THAT(error, HasSubstr("tensor \"tensor.0\" is also in"));
}

TEST(GgufSplit, tensors_of_whole_numbers_count_as_others_do) {
  const test::Folder folder;
  write_parts(folder, 2);
  GgufWriter second = part(1, 2);
  second.tensors.clear();
  test::add_integers<int64_t>(second, "tensor.1", {5, -6});
  second.write(folder / name_of(1, 2));
  const auto file = GgufFile::open(folder / name_of(0, 2));
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->integer_tensors().at("tensor.1").part, 1U);
  EXPECT_EQ(file->read_integers("tensor.1").value(), (std::vector<int64_t>{5, -6}));
  second.tensors[0].name = "tensor.0";
  second.write(folder / name_of(1, 2));
  EXPECT_THAT(error_of(folder / name_of(0, 2)), HasSubstr("tensor \"tensor.0\" is also in"));
}

TEST(GgufSplit, a_tensor_is_borrowed_under_another_name) {
  const test::Folder folder;
  write_parts(folder, 2);
  GgufWriter own;
  own.add_tensor("tensor.0", std::vector<uint64_t>{2}, std::vector<float>{1, 2});
  own.write(folder / "own.gguf");
  const auto lender = GgufFile::open(folder / name_of(0, 2));
  auto file = GgufFile::open(folder / "own.gguf");
  ASSERT_TRUE(lender && file);
  for (const char* const name : {"first", "second"}) {
    const std::string tensor = name == std::string("first") ? "tensor.1" : "tensor.0";
    const auto borrowed = file->borrow(*lender, tensor, name);
    ASSERT_TRUE(borrowed) << borrowed.error().message;
    EXPECT_EQ(read_tensor(*file, *file->find_tensor(name)).value(),
              read_tensor(*lender, *lender->find_tensor(tensor)).value());
  }
  ASSERT_TRUE(file->borrow(*lender, "tensor.1", "third"));
  EXPECT_EQ(file->find_tensor("third")->part, file->find_tensor("first")->part);
  EXPECT_EQ(read_tensor(*file, *file->find_tensor("tensor.0")).value(), (std::vector<float>{1, 2}));
  EXPECT_EQ(file->parts().size(), 3U);
  EXPECT_EQ(file->tensors().size(), 4U);
}

TEST(GgufSplit, a_wrong_tensor_count_is_refused) {
  const test::Folder folder;
  write_parts(folder, 2);
  GgufWriter second = part(1, 2);
  second.add_tensor("extra", Format::kF32, {4});
  second.write(folder / name_of(1, 2));
  EXPECT_THAT(error_of(folder / name_of(0, 2)),
              HasSubstr("\"split.tensors.count\" is 2, but the 2 parts hold 3"));
}

TEST(GgufSplit, a_damaged_part_is_named) {
  const test::Folder folder;
  write_parts(folder, 2);
  std::filesystem::resize_file(folder / name_of(1, 2), 100);
  EXPECT_THAT(error_of(folder / name_of(0, 2)), HasSubstr("model-00002-of-00002.gguf: "));
}

TEST(GgufSplit, impossible_numbers_are_refused) {
  const test::Folder folder;
  const std::pair<uint16_t, uint16_t> cases[] = {{0, 0}, {3, 3}, {65535, 2}};
  for (const auto& [number, count] : cases) {
    part(number, count).write(folder / "model-00001-of-00003.gguf");
    EXPECT_THAT(error_of(folder / "model-00001-of-00003.gguf"), HasSubstr("split")) << number;
  }
  GgufWriter text;
  text.add("split.count", std::string("3")).write(folder / "text.gguf");
  EXPECT_THAT(error_of(folder / "text.gguf"), HasSubstr("\"split.count\" is the string \"3\""));
  GgufWriter large;
  large.add("split.count", uint64_t{1} << 40).write(folder / "large.gguf");
  EXPECT_THAT(error_of(folder / "large.gguf"), HasSubstr("1099511627776"));
}

}  // namespace
}  // namespace lockstep
