#include "engine/machine/direct_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "engine/machine/read_queue.h"
#include "tests/engine/machine/faulty_calls.h"

namespace lockstep {
namespace {

using test::FaultyCalls;
using testing::HasSubstr;

constexpr size_t kFileBytes = 100'001;  // no whole number of blocks
constexpr size_t kBufferBytes = 64U << 10U;

class DirectFileTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::path(testing::TempDir()) /
            ("lockstep-direct-file-" + std::to_string(getpid()));
    std::mt19937_64 random(1);
    for (size_t byte = 0; byte < kFileBytes; ++byte) {
      content_.push_back(static_cast<std::byte>(random()));
    }
    write(path_, content_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  static void write(const std::filesystem::path& path, std::span<const std::byte> content) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()),
               static_cast<std::streamsize>(content.size()));
  }

  std::vector<std::byte> part(uint64_t offset, size_t bytes) const {
    const auto first = content_.begin() + static_cast<ptrdiff_t>(offset);
    return {first, first + static_cast<ptrdiff_t>(bytes)};
  }

  std::filesystem::path path_;
  std::vector<std::byte> content_;
};

struct Stretch {
  uint64_t offset;
  size_t bytes;
};

// Ends in all places within blocks, the file's last bytes among them.
std::vector<Stretch> stretches() {
  std::vector<Stretch> stretches;
  for (const uint64_t offset : {0U, 1U, 511U, 4095U, 4096U, 4097U, 40'000U, 95'999U}) {
    for (const size_t bytes : {1U, 2U, 4000U, 4096U, 4002U, 8193U, 50'000U, 100'001U}) {
      const auto left = static_cast<size_t>(kFileBytes - offset);
      stretches.push_back({offset, std::min({bytes, left, kBufferBytes - 8192})});
    }
  }
  stretches.push_back({kFileBytes - 1, 1});
  return stretches;
}

void read_all(ReadQueue& queue, const std::function<std::vector<std::byte>(Stretch)>& expected) {
  for (const Stretch& stretch : stretches()) {
    queue.start(0, 0, stretch.offset, stretch.bytes);
    queue.submit();
    std::optional<size_t> buffer;
    while (!(buffer = queue.next_ended())) {
      ASSERT_GT(queue.in_flight(), 0U);
      queue.collect(queue.wait());
      queue.submit();
    }
    const auto bytes = queue.take(*buffer);
    ASSERT_TRUE(bytes.has_value()) << bytes.error().message;
    ASSERT_TRUE(std::ranges::equal(*bytes, expected(stretch)))
        << stretch.bytes << " bytes from " << stretch.offset;
  }
}

TEST_F(DirectFileTest, stretches_are_read_whatever_their_ends_and_the_way) {
  const auto reader = FileReader::open(path_);
  for (const bool direct : {true, false}) {
    for (const bool io_uring : {true, false}) {
      for (uint64_t seed = 0; seed < 20; ++seed) {
        FaultyCalls calls;
        if (seed > 0) calls.make_erratic(seed);
        std::vector<std::unique_ptr<DirectFile>> files;
        files.push_back(std::make_unique<DirectFile>(*reader, direct, calls));
        const auto queue = ReadQueue::make(
            files, {.buffer_count = 1, .buffer_bytes = kBufferBytes, .io_uring = io_uring}, calls);
        ASSERT_TRUE(queue.has_value());
        ASSERT_NO_FATAL_FAILURE(read_all(
            **queue, [&](Stretch stretch) { return part(stretch.offset, stretch.bytes); }));
      }
    }
  }
}

TEST_F(DirectFileTest, it_reads_the_file_that_was_opened_whatever_the_path_names_now) {
  const auto reader = FileReader::open(path_);
  const std::filesystem::path other = path_.string() + ".other";
  write(other, std::vector<std::byte>(kFileBytes));
  std::filesystem::rename(other, path_);
  std::vector<std::unique_ptr<DirectFile>> files;
  files.push_back(std::make_unique<DirectFile>(*reader, true, real_disk_calls()));
  const auto queue =
      ReadQueue::make(files, {.buffer_count = 1, .buffer_bytes = kBufferBytes}, real_disk_calls());
  ASSERT_TRUE(queue.has_value());
  read_all(**queue, [&](Stretch stretch) { return part(stretch.offset, stretch.bytes); });
  const auto unchanged = reader->check_unchanged();
  ASSERT_FALSE(unchanged.has_value());
  EXPECT_THAT(unchanged.error().message, HasSubstr("was replaced"));
}

TEST_F(DirectFileTest, the_blocks_around_a_stretch_hold_it_and_no_more) {
  const auto reader = FileReader::open(path_);
  const DirectFile file(*reader, true, real_disk_calls());
  const size_t block = file.block_bytes();
  EXPECT_GE(block, 4096U);
  for (const Stretch& stretch : stretches()) {
    const BlockRange range = file.blocks_around(stretch.offset, stretch.bytes);
    EXPECT_EQ(range.offset % block, 0U);
    EXPECT_EQ(range.length % block, 0U);
    EXPECT_EQ(range.offset + range.lead, stretch.offset);
    EXPECT_EQ(range.needed, range.lead + stretch.bytes);
    EXPECT_GE(range.length, range.needed);
    EXPECT_LT(range.lead, block);
    EXPECT_LT(range.length - range.needed, block);
  }
}

TEST_F(DirectFileTest, a_file_that_was_cut_is_named_with_the_place) {
  const auto reader = FileReader::open(path_);
  std::filesystem::resize_file(path_, 50'000);
  for (const bool direct : {true, false}) {
    DirectFile file(*reader, direct, real_disk_calls());
    const BlockRange range = file.blocks_around(45'000, 10'000);
    auto memory = NodeMemory::allocate({.bytes = range.length, .what = "a test"});
    ASSERT_TRUE(memory.has_value());
    const auto filled = file.fill(range, memory->data(), 0);
    ASSERT_FALSE(filled.has_value());
    EXPECT_EQ(filled.error().kind, ErrorKind::kMachineRefused);
    EXPECT_THAT(filled.error().message, HasSubstr(path_.string()));
    EXPECT_THAT(filled.error().message, HasSubstr("ended at byte 50000 though it had 100001"));
  }
}

TEST_F(DirectFileTest, many_reads_in_flight_end_in_their_own_buffers) {
  const auto reader = FileReader::open(path_);
  std::vector<std::unique_ptr<DirectFile>> files;
  files.push_back(std::make_unique<DirectFile>(*reader, true, real_disk_calls()));
  constexpr size_t kBuffers = 12;
  const auto made = ReadQueue::make(files, {.buffer_count = kBuffers, .buffer_bytes = kBufferBytes},
                                    real_disk_calls());
  ASSERT_TRUE(made.has_value());
  ReadQueue& queue = **made;
  const auto offset = [](size_t buffer) { return buffer * 7001; };
  for (size_t buffer = 0; buffer < kBuffers; ++buffer) {
    queue.start(buffer, 0, offset(buffer), 5000 + buffer);
  }
  queue.submit();
  size_t ended = 0;
  while (ended < kBuffers) {
    if (const auto buffer = queue.next_ended()) {
      const auto bytes = queue.take(*buffer);
      ASSERT_TRUE(bytes.has_value()) << bytes.error().message;
      EXPECT_TRUE(std::ranges::equal(*bytes, part(offset(*buffer), 5000 + *buffer)));
      ++ended;
    } else {
      queue.collect(queue.wait());
    }
  }
  EXPECT_EQ(queue.in_flight(), 0U);
}

}  // namespace
}  // namespace lockstep
