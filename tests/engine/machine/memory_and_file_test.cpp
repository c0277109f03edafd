#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/machine/file_reader.h"
#include "engine/machine/node_memory.h"

namespace lockstep {
namespace {

TEST(NodeMemory, is_zeroed_aligned_and_moves_its_ownership) {
  auto memory = NodeMemory::allocate({.bytes = 5'000'000, .what = "a test"});
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  EXPECT_GE(memory->size_bytes(), 5'000'000U);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % (2U << 20U), 0U);
  EXPECT_TRUE(std::all_of(memory->data(), memory->data() + memory->size_bytes(),
                          [](std::byte byte) { return byte == std::byte{0}; }));
  memory->data()[4'999'999] = std::byte{7};
  NodeMemory other = std::move(*memory);
  EXPECT_EQ(memory->data(), nullptr);
  EXPECT_EQ(other.data()[4'999'999], std::byte{7});
}

TEST(NodeMemory, more_than_there_is_gets_refused_with_the_numbers) {
  const auto memory = NodeMemory::allocate({.bytes = size_t{1} << 50U, .what = "the weights"});
  ASSERT_FALSE(memory.has_value());
  EXPECT_EQ(memory.error().kind, ErrorKind::kMachineRefused);
  EXPECT_NE(memory.error().message.find("1073741824 MiB"), std::string::npos)
      << memory.error().message;
  EXPECT_NE(memory.error().message.find("the weights"), std::string::npos);
}

TEST(FileReader, reads_whole_stretches_and_names_where_a_file_was_cut) {
  const std::filesystem::path path = ::testing::TempDir() + "lockstep-file-reader";
  std::ofstream(path) << "0123456789";
  const auto reader = FileReader::open(path);
  ASSERT_TRUE(reader.has_value());
  std::vector<std::byte> bytes(4);
  ASSERT_TRUE(reader->read(3, bytes).has_value());
  EXPECT_EQ(bytes[0], std::byte{'3'});
  EXPECT_EQ(bytes[3], std::byte{'6'});
  const auto beyond = reader->read(8, bytes);
  ASSERT_FALSE(beyond.has_value());
  EXPECT_EQ(beyond.error().kind, ErrorKind::kMachineRefused);
  EXPECT_NE(beyond.error().message.find("byte 10"), std::string::npos) << beyond.error().message;
  EXPECT_TRUE(reader->check_unchanged().has_value());
  std::ofstream(path, std::ios::app) << "more";
  const auto unchanged = reader->check_unchanged();
  ASSERT_FALSE(unchanged.has_value());
  EXPECT_NE(unchanged.error().message.find(path.string()), std::string::npos);
  std::filesystem::remove(path);
}

TEST(FileReader, a_missing_file_is_named) {
  const auto reader = FileReader::open("/nonexistent/model.gguf");
  ASSERT_FALSE(reader.has_value());
  EXPECT_NE(reader.error().message.find("/nonexistent/model.gguf"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
