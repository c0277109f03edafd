#include "engine/machine/file_reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace lockstep {
namespace {

TEST(FileReader, reads_whole_stretches_and_names_where_a_file_was_cut) {
  const std::filesystem::path path =
      ::testing::TempDir() + "lockstep-file-reader-" + std::to_string(getpid());
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
