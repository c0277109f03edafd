#include "engine/machine/barrier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

// Every worker writes its round into its own cell, meets the others, and reads all cells: each must
// hold this round. Plain integers: the thread sanitizer sees a barrier that does not order them.
void run_rounds(size_t worker_count, uint32_t rounds, uint32_t spins) {
  Barrier barrier(worker_count, spins);
  std::vector<uint32_t> cells(worker_count);
  std::vector<uint64_t> wrong(worker_count * 16);  // a line apart
  std::vector<std::thread> threads;
  for (size_t worker = 0; worker < worker_count; ++worker) {
    threads.emplace_back([&, worker] {
      for (uint32_t round = 1; round <= rounds; ++round) {
        cells[worker] = round;
        barrier.arrive_and_wait(worker);
        for (const uint32_t cell : cells) wrong[worker * 16] += cell != round ? 1 : 0;
        barrier.arrive_and_wait(worker);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::ranges::count(wrong, 0U), static_cast<std::ptrdiff_t>(wrong.size()))
      << worker_count << " workers, " << spins << " spins";
}

TEST(Barrier, nobody_leaves_before_all_have_arrived) {
  for (const size_t worker_count : {1U, 2U, 3U, 7U}) run_rounds(worker_count, 2000, 100);
}

TEST(Barrier, sleeping_workers_are_woken) {
  for (const size_t worker_count : {2U, 5U, 16U}) run_rounds(worker_count, 500, 0);
}

TEST(Barrier, work_between_arriving_and_waiting_is_not_waited_for) {
  // Worker 1 arrives and goes on before worker 0 has arrived: it can only do so if arrive() does
  // not block.
  Barrier barrier(2, 0);
  uint32_t done_between = 0;
  std::thread other([&] {
    barrier.arrive(1);
    done_between = 42;
    barrier.wait(1);
  });
  barrier.arrive_and_wait(0);
  other.join();
  EXPECT_EQ(done_between, 42U);
}

}  // namespace
}  // namespace lockstep
