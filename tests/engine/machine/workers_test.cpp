#include "engine/machine/workers.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <ctime>
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

TEST(Workers, an_idle_pool_sleeps) {
  const std::vector<int> cpus(2, -1);
  auto workers = Workers::start(cpus);
  ASSERT_TRUE(workers.has_value());
  (*workers)->run([](size_t) {});
  // The processor time of this process over a long pause: a spinning pool would use the pause
  // twice.
  timespec pause{.tv_sec = 0, .tv_nsec = 500'000'000};
  const std::clock_t before = std::clock();
  while (nanosleep(&pause, &pause) != 0) {
  }
  const double used = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(used, 0.25);
}

}  // namespace
}  // namespace lockstep
