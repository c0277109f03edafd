#include "server/daemon/last_resort.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// Forks; the child does `live` and ends with status 0 if it comes back from it.
template <typename Live>
pid_t child_that(Live live) {
  const pid_t child = fork();
  if (child == 0) {
    LastResort last_resort;
    LastResort::unblock();
    live(last_resort);
    _exit(0);
  }
  return child;
}

int status_of(pid_t child, int options = 0) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, options), child);
  return status;
}

TEST(LastResort, a_process_that_does_not_end_is_ended) {
  const pid_t child = child_that([](LastResort& last_resort) {
    last_resort.end_after(0);
    while (true) pause();
  });
  const int status = status_of(child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGALRM);
}

TEST(LastResort, a_process_that_was_stopped_for_longer_goes_on) {
  const pid_t child = child_that([](LastResort& last_resort) {
    last_resort.end_after(3);
    raise(SIGSTOP);
    last_resort.never();
  });
  ASSERT_TRUE(WIFSTOPPED(status_of(child, WUNTRACED)));
  std::this_thread::sleep_for(4500ms);  // longer than an alarm would wait
  kill(child, SIGCONT);
  const int status = status_of(child);
  EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
}

TEST(LastResort, never_takes_it_back) {
  const pid_t child = child_that([](LastResort& last_resort) {
    last_resort.end_after(0);
    last_resort.never();
    std::this_thread::sleep_for(1200ms);
  });
  EXPECT_TRUE(WIFEXITED(status_of(child)));
}

}  // namespace
}  // namespace lockstep
