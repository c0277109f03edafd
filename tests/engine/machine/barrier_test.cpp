#include "engine/machine/barrier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/tried_cases.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

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
  WorkerGroups groups = {};  // of each rank's workers
};

// Groups of these sizes, whose members are spread over the workers: worker 0 is in the first, and
// then each group that is not full gets one in turn.
WorkerGroups spread_groups(const std::vector<size_t>& sizes) {
  WorkerGroups groups(sizes.size());
  size_t worker = 0;
  for (bool all_full = false; !all_full;) {
    all_full = true;
    for (size_t group = 0; group < sizes.size(); ++group) {
      if (groups[group].size() == sizes[group]) continue;
      groups[group].push_back(worker++);
      all_full = false;
    }
  }
  return groups;
}

size_t count_workers(const WorkerGroups& groups) {
  size_t count = 0;
  for (const std::vector<size_t>& group : groups) count += group.size();
  return count;
}

std::vector<size_t> sizes_of(const WorkerGroups& groups) {
  std::vector<size_t> sizes;
  for (const std::vector<size_t>& group : groups) sizes.push_back(group.size());
  return sizes;
}

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
      barriers_.push_back(
          std::make_unique<Barrier>(machine.worker_count, machine.spins, -1, machine.groups));
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

// The more workers there are, the longer a round takes, and the more chances it has to go wrong.
uint32_t rounds_of(size_t workers) {
  return rounds_per_case() / static_cast<uint32_t>(std::max<size_t>(workers / 2, 1));
}

void expect_order(const Machine& machine, uint32_t rounds) {
  const uint32_t seed = 7;
  EXPECT_EQ(Rounds(machine, seed).run(rounds), 0U)
      << machine.rank_count << " ranks of " << machine.worker_count << " workers, " << machine.spins
      << " spins, groups of " << ::testing::PrintToString(sizes_of(machine.groups)) << ", seed "
      << seed;
}

TEST(Barrier, nobody_leaves_before_all_have_arrived) {
  for (const size_t workers : {1U, 2U, 3U, 4U, 7U, 16U})
    expect_order({1, workers, 200}, rounds_of(workers));
}

TEST(Barrier, nobody_leaves_before_all_have_arrived_where_workers_outnumber_processors) {
  for (const size_t workers : {1U, 2U, 3U, 4U, 7U, 16U})
    expect_order({1, workers, 0}, rounds_of(workers));
}

TEST(Barrier, two_workers_that_spin_keep_their_order_over_many_rounds) {
  expect_order({1, 2, 20000}, static_cast<uint32_t>(tried_cases(size_t{10} * rounds_per_case())));
}

TEST(Barrier, workers_that_sleep_at_once_are_woken) {
  for (const size_t workers : {2U, 3U, 5U}) expect_order({1, workers, 1}, rounds_per_case());
}

TEST(Barrier, rounds_of_one_rank_and_of_all_ranks_may_take_turns) {
  for (const uint32_t spins : {0U, 1U, 200U}) {
    for (const size_t ranks : {2U, 3U, 5U}) {
      for (const size_t workers : {1U, 2U, 3U}) {
        expect_order({ranks, workers, spins}, rounds_of(ranks * workers) / 8);
      }
    }
  }
}

// Even, uneven, one group, groups of one worker, more groups than a group may have workers.
const std::vector<std::vector<size_t>> kGroupSizes = {
    {2, 2},       {1, 4, 2}, {5},     {1, 1, 1},
    {3, 3, 3, 3}, {8, 8, 1}, {16, 4}, std::vector<size_t>(18, 1)};

TEST(Barrier, workers_in_groups_keep_their_order) {
  for (const uint32_t spins : {1U, 50U}) {  // those of 1 sleep
    for (const std::vector<size_t>& sizes : kGroupSizes) {
      const WorkerGroups groups = spread_groups(sizes);
      const size_t workers = count_workers(groups);
      expect_order({1, workers, spins, groups},
                   rounds_per_case() / static_cast<uint32_t>(8 * workers));
    }
  }
}

TEST(Barrier, ranks_of_workers_in_groups_keep_their_order) {
  for (const uint32_t spins : {1U, 50U}) {
    for (const std::vector<size_t>& sizes : {std::vector<size_t>{2, 2}, {1, 3, 2}}) {
      const WorkerGroups groups = spread_groups(sizes);
      expect_order({3, count_workers(groups), spins, groups}, rounds_per_case() / 200);
    }
  }
}

TEST(Barrier, many_more_workers_than_processors_keep_their_order) {
  for (const size_t workers : {17U, 32U, 64U}) {
    for (const uint32_t spins : {0U, 1U, 20U}) {
      expect_order({1, workers, spins, group_workers(workers)}, rounds_per_case() / 200);
    }
  }
}

TEST(WorkerGroups, up_to_16_workers_meet_in_one_level) {
  for (const size_t workers : {0U, 1U, 2U, 15U, 16U}) {
    EXPECT_TRUE(group_workers(workers).empty()) << workers;
    EXPECT_TRUE(group_workers(workers, std::vector<int>(workers, 3)).empty()) << workers;
  }
  EXPECT_FALSE(group_workers(17).empty());
}

TEST(WorkerGroups, every_worker_is_in_one_group_and_worker_0_leads_the_first) {
  for (size_t workers = 17; workers <= 200; ++workers) {
    for (const int caches : {1, 2, 3, 8, 60}) {
      std::vector<int> cache_of;
      for (size_t worker = 0; worker < workers; ++worker) {
        cache_of.push_back(static_cast<int>(worker) % caches);
      }
      const WorkerGroups groups = group_workers(workers, cache_of);
      std::vector<size_t> members;
      for (const std::vector<size_t>& group : groups) {
        EXPECT_GE(group.size(), 1U);
        EXPECT_LE(group.size(), 16U);
        members.insert(members.end(), group.begin(), group.end());
      }
      EXPECT_EQ(members.size(), workers);
      EXPECT_EQ(std::set<size_t>(members.begin(), members.end()).size(), workers);
      EXPECT_EQ(groups.front().front(), 0U);
    }
  }
}

TEST(WorkerGroups, workers_of_one_cache_are_a_group_whatever_their_numbers) {
  std::vector<int> caches(24, 8);  // uneven: 13 workers, 7 and 4
  for (const size_t worker : {1U, 4U, 6U, 9U, 12U, 20U, 22U}) caches[worker] = 0;
  for (const size_t worker : {2U, 3U, 5U, 23U}) caches[worker] = 16;
  EXPECT_THAT(group_workers(24, caches),
              ElementsAre(ElementsAre(0, 7, 8, 10, 11, 13, 14, 15, 16, 17, 18, 19, 21),
                          ElementsAre(1, 4, 6, 9, 12, 20, 22), ElementsAre(2, 3, 5, 23)));
}

TEST(WorkerGroups, a_cache_that_many_share_is_divided_among_neighbours) {
  EXPECT_EQ(sizes_of(group_workers(60, std::vector<int>(60, 0))),
            (std::vector<size_t>{7, 8, 7, 8, 7, 8, 7, 8}));
  std::vector<int> caches(40, 0);
  for (size_t worker = 24; worker < 40; ++worker) caches[worker] = 24;
  EXPECT_EQ(sizes_of(group_workers(40, caches)), (std::vector<size_t>{8, 8, 8, 16}));
}

TEST(WorkerGroups, unknown_caches_and_caches_of_few_workers_give_even_groups) {
  const std::vector<size_t> even = {8, 8, 8, 8};
  EXPECT_EQ(sizes_of(group_workers(32)), even);
  EXPECT_EQ(sizes_of(group_workers(32, std::vector<int>(31, 0))), even);  // of other workers
  std::vector<int> pairs;
  for (int worker = 0; worker < 32; ++worker) pairs.push_back(worker / 2);
  EXPECT_EQ(sizes_of(group_workers(32, pairs)), even);
  EXPECT_THAT(group_workers(32, pairs)[1], ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
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
