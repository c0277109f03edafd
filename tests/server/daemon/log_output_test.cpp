#include "server/daemon/log_output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <spdlog/details/log_msg.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

using testing::HasSubstr;

void log(LogOutput& output, const std::string& text) {
  output.log(spdlog::details::log_msg("test", spdlog::level::info, text));
}

struct Pipe {
  Pipe() { EXPECT_EQ(pipe(ends), 0); }
  ~Pipe() {
    for (const int end : ends) close(end);
  }
  // Everything, until the last line that is wanted has come.
  std::string read_until(std::string_view wanted) const {
    std::string text;
    char buffer[65536];
    while (text.find(wanted) == text.npos) {
      const ssize_t count = read(ends[0], buffer, sizeof(buffer));
      if (count <= 0) break;
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }
  int ends[2];
};

TEST(LogOutput, what_is_logged_is_written_in_order) {
  const Pipe pipe;
  LogOutput output(pipe.ends[1], LogFormat::kText);
  for (int number = 0; number < 100; ++number) log(output, fmt::format("line {}.", number));
  const std::string text = pipe.read_until("line 99.");
  size_t last = 0;
  for (int number = 0; number < 100; ++number) {
    const size_t at = text.find(fmt::format("line {}.\n", number));
    ASSERT_NE(at, text.npos);
    EXPECT_GE(at, last);
    last = at;
  }
  EXPECT_EQ(output.dropped(), 0U);
}

TEST(LogOutput, nobody_waits_for_a_pipe_that_is_not_read_and_what_is_lost_is_counted) {
  const Pipe pipe;
  LogOutput output(pipe.ends[1], LogFormat::kText, 64 * 1024);
  const std::string filling(1000, 'x');
  constexpr uint64_t kLines = 1000;  // 1 MB: the pipe takes 64 KiB and the queue as much
  for (uint64_t number = 0; number < kLines; ++number) log(output, filling);
  const uint64_t dropped = output.dropped();
  EXPECT_GT(dropped, kLines / 2);
  EXPECT_LT(dropped, kLines);
  log(output, "the last one");
  const std::string text = pipe.read_until("the last one");
  EXPECT_THAT(text, HasSubstr(" log messages were dropped"));
}

TEST(LogOutput, the_end_does_not_wait_for_a_pipe_that_is_not_read) {
  const Pipe pipe;
  const auto start = std::chrono::steady_clock::now();
  {
    LogOutput output(pipe.ends[1], LogFormat::kText);
    for (int number = 0; number < 1000; ++number) log(output, std::string(1000, 'x'));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(LogOutput, a_full_disk_costs_lines_and_nothing_else) {
  const int full = open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  {
    LogOutput output(full, LogFormat::kText);
    for (int number = 0; number < 10; ++number) log(output, "lost");
    output.flush();
    EXPECT_EQ(output.dropped(), 10U);
  }
  close(full);
}

TEST(LogOutput, a_reader_that_has_gone_or_a_closed_descriptor_costs_lines_and_nothing_else) {
  std::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  LogOutput output(ends[1], LogFormat::kText);
  log(output, "lost");
  output.flush();
  EXPECT_EQ(output.dropped(), 1U);
  close(ends[1]);
  log(output, "lost as well");
  output.flush();
  EXPECT_EQ(output.dropped(), 2U);
}

TEST(LogOutput, many_threads_log_at_once) {
  const Pipe pipe;
  LogOutput output(pipe.ends[1], LogFormat::kLogfmt);
  std::string text;
  std::thread reader([&] { text = pipe.read_until("msg=end"); });
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&output] {
      for (int number = 0; number < 500; ++number) log(output, "m");
    });
  }
  for (std::thread& writer : writers) writer.join();
  log(output, "end");
  reader.join();
  size_t count = 0;
  for (size_t at = 0; (at = text.find("msg=m\n", at)) != text.npos; ++at) ++count;
  EXPECT_EQ(count, 2000U);
}

}  // namespace
}  // namespace lockstep
