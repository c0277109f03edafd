#include "engine/machine/workers.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

TEST(Workers, every_worker_runs_every_job_once) {
  for (const size_t count : {1U, 2U, 5U}) {
    const std::vector<int> cpus(count, -1);
    auto workers = Workers::start(cpus);
    ASSERT_TRUE(workers.has_value()) << workers.error().message;
    std::vector<int> runs(count);
    for (int job = 1; job <= 300; ++job) {
      (*workers)->run([&](size_t worker) { ++runs[worker]; });
      // run() returned, so plain reads are ordered after the workers' writes.
      for (const int run : runs) ASSERT_EQ(run, job);
    }
  }
}

TEST(Workers, a_jobs_workers_meet_at_the_barrier) {
  const std::vector<int> cpus(4, -1);
  auto workers = Workers::start(cpus);
  ASSERT_TRUE(workers.has_value());
  std::vector<int> values(4);
  std::vector<int> sums(4);
  (*workers)->run([&](size_t worker) {
    for (int round = 1; round <= 100; ++round) {
      values[worker] = round;
      (*workers)->barrier().arrive_and_wait(worker);
      int sum = 0;
      for (const int value : values) sum += value;
      sums[worker] += sum == 4 * round ? 1 : 0;
      (*workers)->barrier().arrive_and_wait(worker);
    }
  });
  EXPECT_EQ(sums, std::vector<int>(4, 100));
}

TEST(Workers, a_worker_stays_on_its_processor) {
  const int cpu = sched_getcpu();
  auto workers = Workers::start(std::vector<int>{cpu});
  ASSERT_TRUE(workers.has_value());
  int seen = -1;
  (*workers)->run([&](size_t) { seen = sched_getcpu(); });
  EXPECT_EQ(seen, cpu);
}

TEST(Workers, a_processor_that_is_not_there_is_an_error_that_names_it) {
  auto workers = Workers::start(std::vector<int>{1023});
  ASSERT_FALSE(workers.has_value());
  EXPECT_EQ(workers.error().kind, ErrorKind::kMachineRefused);
  EXPECT_NE(workers.error().message.find("1023"), std::string::npos);
}

// The status of a thread of this process: "State" or "voluntary_ctxt_switches".
std::string status_of(pid_t thread, const std::string& name) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return line.substr(name.size() + 1);
  }
  return "";
}

TEST(Workers, an_idle_pool_sleeps_and_stays_asleep) {
  for (const bool crowded : {false, true}) {
    auto workers = Workers::start(std::vector<int>(2, -1), crowded);
    ASSERT_TRUE(workers.has_value());
    std::vector<pid_t> threads(2);
    (*workers)->run([&](size_t worker) { threads[worker] = gettid(); });
    // Nobody gives them a job: they fall asleep, sooner or later.
    for (const pid_t thread : threads) {
      while (!status_of(thread, "State").starts_with("\tS")) std::this_thread::yield();
    }
    // A thread that sleeps until it is woken enters and leaves the processor no more, however long
    // one looks. It may still be between two attempts to sleep when it is first seen.
    const auto switches = [&] {
      std::string all;
      for (const pid_t thread : threads) all += status_of(thread, "voluntary_ctxt_switches");
      return all;
    };
    std::string before;
    do {
      before = switches();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    } while (switches() != before);
    (*workers)->run([](size_t) {});
    while (switches() == before) std::this_thread::yield();  // a job wakes them
  }
}

}  // namespace
}  // namespace lockstep
