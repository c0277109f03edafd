#include "server/daemon/stack_dump.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <csignal>
#include <string>
#include <string_view>
#include <thread>

namespace lockstep {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

std::atomic<bool> waiting_ends = false;
std::atomic<int> waiting_count = 0;

__attribute__((noinline)) void wait_in_a_function_of_its_own() {
  ++waiting_count;
  while (!waiting_ends) usleep(1000);
  // This keeps the call above from being the last thing, which would replace this frame.
  --waiting_count;
}

// The text that write() gives to a pipe that has space for it.
std::string dumped(StackDump& dump, LogFormat format) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  std::string text;
  std::thread reader([&] {
    char buffer[4096];
    for (ssize_t count = 0; (count = read(ends[0], buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(count));
    }
  });
  dump.write(ends[1], log_frame(format, "error"));
  close(ends[1]);
  reader.join();
  close(ends[0]);
  return text;
}

class Waiting {
 public:
  explicit Waiting(bool deaf)
      : thread_([deaf] {
          if (deaf) {
            sigset_t all;
            sigfillset(&all);
            pthread_sigmask(SIG_BLOCK, &all, nullptr);
          }
          pthread_setname_np(pthread_self(), deaf ? "deaf" : "a \"name\"");
          wait_in_a_function_of_its_own();
        }) {
    while (waiting_count == 0) std::this_thread::yield();
  }
  ~Waiting() {
    waiting_ends = true;
    thread_.join();
    waiting_ends = false;
  }

 private:
  std::thread thread_;
};

TEST(StackDump, names_threads_and_the_functions_they_are_in) {
  StackDump dump;
  const Waiting waiting(false);
  const std::string text = dumped(dump, LogFormat::kText);
  EXPECT_THAT(text, ContainsRegex("error stack of thread [0-9]+ \\(a \\?name\\?, state [SR]\\): "
                                  "[^\n]*wait_in_a_function_of_its_own[^\n]*\\+0x[0-9a-f]+"));
  // The caller's own stack tells nothing.
  EXPECT_THAT(text, Not(HasSubstr("StackDump5write")));
  // And again.
  EXPECT_THAT(dumped(dump, LogFormat::kText), HasSubstr("wait_in_a_function_of_its_own"));
}

TEST(StackDump, a_thread_that_does_not_answer_is_listed) {
  StackDump dump;
  const Waiting waiting(true);
  EXPECT_THAT(dumped(dump, LogFormat::kText), ContainsRegex("\\(deaf, state [SR]\\): no answer\n"));
}

TEST(StackDump, a_reader_that_does_not_read_ends_it) {
  StackDump dump;
  const Waiting waiting(false);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string filling(1 << 20, 'x');
  EXPECT_FALSE(write_bounded(ends[1], filling));
  dump.write(ends[1], log_frame(LogFormat::kJson, "error"));  // returns
  close(ends[0]);
  close(ends[1]);
}

TEST(StackDump, lines_bear_the_frame_of_the_log) {
  StackDump dump;
  const Waiting waiting(false);
  EXPECT_THAT(dumped(dump, LogFormat::kLogfmt),
              ContainsRegex("time=[^ ]+ level=error msg=\"stack of thread [^\"\n]+\"\n"));
  EXPECT_THAT(dumped(dump, LogFormat::kJson),
              ContainsRegex("\\{\"time\":\"[^\"]+\",\"level\":\"error\",\"msg\":\"stack of thread "
                            "[^\"\n]+\"\\}\n"));
}

// Each read of a pipe of packets gives what one write wrote.
TEST(StackDump, a_line_is_written_at_once_and_whole) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_DIRECT), 0);
  const LogFrame frame = log_frame(LogFormat::kJson, "critical");
  const std::string long_text(10'000, 'x');
  for (const std::string_view text : {std::string_view("moves"), std::string_view(long_text)}) {
    ASSERT_TRUE(write_line(ends[1], frame, {"it ", text, " no more"}));
    char buffer[2 * PIPE_BUF];
    const ssize_t count = read(ends[0], buffer, sizeof buffer);
    ASSERT_GT(count, 0);
    const std::string line(buffer, static_cast<size_t>(count));
    EXPECT_TRUE(line.starts_with(frame.head + "it "));
    EXPECT_TRUE(line.ends_with(frame.tail));
    EXPECT_LE(line.size(), static_cast<size_t>(PIPE_BUF));
    EXPECT_GT(line.size(), std::min<size_t>(PIPE_BUF - 100, frame.head.size() + text.size()));
  }
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace lockstep
