#include "engine/machine/barrier.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

// The rounds of each case. With LOCKSTEP_TEST_ROUNDS=500000 two workers meet ten million times in
// the case of many rounds.
uint32_t rounds_per_case() {
  const char* wanted = std::getenv("LOCKSTEP_TEST_ROUNDS");
  return wanted != nullptr ? static_cast<uint32_t>(std::atoi(wanted)) : 10000;
}

struct alignas(kLineBytes) Padded {
  uint64_t value = 0;
};

struct Machine {
  size_t rank_count = 1;
  size_t worker_count = 1;  // of each rank
  uint32_t spins = 0;
};

// Every worker writes its round into its own cell, meets the others, and reads the cells of all
// that it has met: each must hold this round. Plain integers: the thread sanitizer sees a barrier
// that does not order them. `seed` draws which rounds are of all ranks; a rank's workers meet alone
// in the others. After either kind all read before anyone writes again.
class Rounds {
 public:
  Rounds(const Machine& machine, uint32_t seed)
      : machine_(machine),
        links_(machine.rank_count, machine.spins),
        cells_(machine.rank_count * machine.worker_count),
        wrong_(cells_.size()),
        seed_(seed) {
    for (size_t rank = 0; rank < machine.rank_count; ++rank) {
      barriers_.push_back(std::make_unique<Barrier>(machine.worker_count, machine.spins));
      barriers_.back()->join(links_, rank);
    }
  }

  // Returns how many cells were seen with another round than their reader's.
  uint64_t run(uint32_t rounds) {
    std::vector<std::thread> threads;
    for (size_t id = 0; id < cells_.size(); ++id) {
      threads.emplace_back([this, id, rounds] { work(id, rounds); });
    }
    for (std::thread& thread : threads) thread.join();
    uint64_t wrong = 0;
    for (const Padded& one : wrong_) wrong += one.value;
    return wrong;
  }

 private:
  void work(size_t id, uint32_t rounds) {
    std::minstd_rand random(seed_);  // the same draws for all
    const size_t worker = id % machine_.worker_count;
    const size_t rank = id / machine_.worker_count;
    Barrier& barrier = *barriers_[rank];
    for (uint32_t round = 1; round <= rounds; ++round) {
      const bool all = random() % 3 == 0;
      const size_t first = all ? 0 : rank * machine_.worker_count;
      const size_t last = all ? cells_.size() : first + machine_.worker_count;
      cells_[id].value = round;
      meet(barrier, worker, all);
      for (size_t other = first; other < last; ++other) {
        wrong_[id].value += cells_[other].value != round ? 1 : 0;
      }
      meet(barrier, worker, all);
    }
  }

  static void meet(Barrier& barrier, size_t worker, bool all) {
    barrier.arrive(worker);
    all ? barrier.wait_for_all_ranks(worker) : barrier.wait(worker);
  }

  Machine machine_;
  RankLinks links_;
  std::vector<std::unique_ptr<Barrier>> barriers_;
  std::vector<Padded> cells_;
  std::vector<Padded> wrong_;
  uint32_t seed_;
};

void expect_order(const Machine& machine, uint32_t rounds) {
  const uint32_t seed = 7;
  EXPECT_EQ(Rounds(machine, seed).run(rounds), 0U)
      << machine.rank_count << " ranks of " << machine.worker_count << " workers, " << machine.spins
      << " spins, seed " << seed;
}

TEST(Barrier, nobody_leaves_before_all_have_arrived) {
  for (const size_t workers : {1U, 2U, 3U, 4U, 7U, 16U})
    expect_order({1, workers, 200}, rounds_per_case());
}

TEST(Barrier, nobody_leaves_before_all_have_arrived_where_workers_outnumber_processors) {
  for (const size_t workers : {1U, 2U, 3U, 4U, 7U, 16U})
    expect_order({1, workers, 0}, rounds_per_case());
}

TEST(Barrier, two_workers_that_spin_keep_their_order_over_many_rounds) {
  expect_order({1, 2, 20000}, 10 * rounds_per_case());
}

TEST(Barrier, workers_that_sleep_at_once_are_woken) {
  for (const size_t workers : {2U, 3U, 5U}) expect_order({1, workers, 1}, rounds_per_case());
}

TEST(Barrier, rounds_of_one_rank_and_of_all_ranks_may_take_turns) {
  for (const uint32_t spins : {0U, 1U, 200U}) {
    for (const size_t ranks : {2U, 3U, 5U}) {
      for (const size_t workers : {1U, 2U, 3U}) {
        expect_order({ranks, workers, spins}, rounds_per_case() / 8);
      }
    }
  }
}

TEST(Barrier, work_between_arriving_and_waiting_is_not_waited_for) {
  // Worker 1 arrives and goes on before worker 0 has arrived: it can only do so if arrive() does
  // not block.
  for (const uint32_t spins : {0U, 100U}) {
    Barrier barrier(2, spins);
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
}

}  // namespace
}  // namespace lockstep
