#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/machine/arithmetic_speed.h"
#include "engine/machine/file_speed.h"
#include "engine/machine/memory_speed.h"

namespace lockstep {
namespace {

// How fast is not for a test to say; that every figure is one, is.
TEST(MemorySpeed, every_figure_is_measured_even_in_no_time) {
  for (const size_t threads : {1U, 3U}) {
    const std::vector<int> cpus(threads, -1);
    const auto speed = measure_memory({.cpus = cpus, .node = -1, .bytes = 8U << 20U, .seconds = 0});
    ASSERT_TRUE(speed.has_value()) << speed.error().message;
    for (const double figure : {speed->all_cores.read, speed->all_cores.write,
                                speed->all_cores.copy, speed->one_core.read, speed->one_core.write,
                                speed->one_core.copy, speed->latency_seconds}) {
      EXPECT_GT(figure, 0);
      EXPECT_TRUE(std::isfinite(figure));
    }
    EXPECT_FALSE(speed->pages.empty());
  }
}

TEST(MemorySpeed, a_processor_that_is_not_there_is_an_error_that_names_it) {
  const std::vector<int> cpus = {1023};
  const auto speed = measure_memory({.cpus = cpus, .node = -1, .bytes = 1U << 20U, .seconds = 0});
  ASSERT_FALSE(speed.has_value());
  EXPECT_EQ(speed.error().kind, ErrorKind::kMachineRefused);
  EXPECT_NE(speed.error().message.find("1023"), std::string::npos);
}

TEST(ArithmeticSpeed, every_loop_that_this_machine_has_runs) {
  std::string skipped;
  for (const ArithmeticLoop& loop : arithmetic_loops()) {
    SCOPED_TRACE(std::string(loop.instruction_set) + ' ' + std::string(loop.operation));
    if (!loop.is_supported()) {
      skipped += ' ' + std::string(loop.instruction_set) + ' ' + std::string(loop.operation) + ',';
      continue;
    }
    for (const size_t threads : {1U, 2U}) {
      const std::vector<int> cpus(threads, -1);
      const auto speed = measure_arithmetic(loop, cpus, 0);
      ASSERT_TRUE(speed.has_value()) << speed.error().message;
      // A loop that the compiler has taken away would be faster than anything that exists.
      for (const double figure : {speed->all_cores, speed->one_core}) {
        EXPECT_GT(figure, 0);
        EXPECT_LT(figure, 1e14);
      }
    }
  }
  if (!skipped.empty()) GTEST_SKIP() << "this machine lacks" << skipped << " the others ran";
}

TEST(ArithmeticSpeed, a_processor_that_is_not_there_is_an_error_that_names_it) {
  const std::vector<int> cpus = {1023};
  const auto speed = measure_arithmetic(arithmetic_loops().front(), cpus, 0);
  ASSERT_FALSE(speed.has_value());
  EXPECT_EQ(speed.error().kind, ErrorKind::kMachineRefused);
  EXPECT_NE(speed.error().message.find("1023"), std::string::npos);
}

class FileSpeedTest : public testing::Test {
 protected:
  std::filesystem::path write_file(size_t bytes) {
    std::ofstream file(path_, std::ios::binary);
    file << std::string(bytes, 'x');
    return path_;
  }

  ~FileSpeedTest() override { std::filesystem::remove(path_); }

  // Tests run side by side, each in a process of its own.
  std::filesystem::path path_ = std::filesystem::path(testing::TempDir()) /
                                ("lockstep-file-speed-" + std::to_string(getpid()));
};

TEST_F(FileSpeedTest, a_file_that_is_soon_read_is_read_whole) {
  for (const size_t bytes : {1U, 4096U, 5'000'001U, 80'000'000U}) {
    const auto speed = measure_file_read(write_file(bytes), 1e9);
    ASSERT_TRUE(speed.has_value()) << speed.error().message;
    EXPECT_EQ(speed->bytes, bytes);
    EXPECT_GT(speed->seconds, 0);
  }
}

TEST_F(FileSpeedTest, when_the_time_is_over_reading_ends) {
  const auto speed = measure_file_read(write_file(80'000'000), 0);
  ASSERT_TRUE(speed.has_value()) << speed.error().message;
  EXPECT_LT(speed->bytes, 80'000'000U);
  EXPECT_GT(speed->bytes, 0U);
}

TEST_F(FileSpeedTest, what_is_no_file_is_named) {
  const auto speed = measure_file_read("/nowhere/at/all", 1);
  ASSERT_FALSE(speed.has_value());
  EXPECT_EQ(speed.error().kind, ErrorKind::kInvalidInput);
  EXPECT_NE(speed.error().message.find("/nowhere/at/all"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
