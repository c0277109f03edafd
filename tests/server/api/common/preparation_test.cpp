// In which order requests are prepared. Times are values here; threads are waited for.
#include "server/api/common/preparation.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/pause_point.h"

namespace lockstep {
namespace {

using Id = PreparationOrder::Id;
using Time = PreparationOrder::Time;

const Time kStart = Time{} + std::chrono::hours(1);

PreparationLimits without_credit(size_t turns = 1) {
  PreparationLimits limits;
  limits.turns = turns;
  limits.client_credit_seconds = 0;
  return limits;
}

TEST(PreparationOrder, clients_take_turns_and_each_ones_jobs_come_in_order) {
  PreparationOrder order(without_credit());
  for (int job = 0; job < 10; ++job) order.add("many", 10, kStart);
  const Id single = order.add("one", 10, kStart);
  ASSERT_EQ(order.next(kStart)->id, 1U);
  EXPECT_FALSE(order.next(kStart).has_value());  // there is one turn
  EXPECT_FALSE(order.charge(1, 0.002, kStart));  // its slice is over, and another waits
  EXPECT_EQ(order.next(kStart)->id, single);
  order.end(single, 0.001, kStart);
  const auto again = order.next(kStart);
  EXPECT_EQ(again->id, 1U);  // not another job of the same client
  EXPECT_FALSE(again->is_new);
}

TEST(PreparationOrder, a_turn_goes_on_while_nobody_else_waits) {
  PreparationOrder order(without_credit());
  order.add("a", 10, kStart);
  order.add("a", 10, kStart);
  ASSERT_TRUE(order.next(kStart));
  EXPECT_TRUE(order.charge(1, 10, kStart));
}

TEST(PreparationOrder, processor_time_is_shared_evenly_by_clients_however_many_jobs_they_have) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    PreparationOrder order(without_credit(1 + seed % 3));
    const size_t turns = 1 + seed % 3;
    std::map<std::string, size_t> jobs = {{"a", 60}, {"b", 4}, {"c", 7}, {"d", 20}};
    std::map<Id, std::string> owners;
    for (const auto& [client, count] : jobs) {
      for (size_t job = 0; job < count; ++job) owners[order.add(client, 100, kStart)] = client;
    }
    std::vector<Id> running;
    std::map<std::string, double> used;
    while (order.used_seconds("a") < 1) {
      while (const auto turn = order.next(kStart)) running.push_back(turn->id);
      ASSERT_EQ(running.size(), turns);
      const size_t at = random() % running.size();
      const double seconds = 0.0002 + 0.000001 * static_cast<double>(random() % 1000);
      used[owners.at(running[at])] += seconds;
      if (!order.charge(running[at], seconds, kStart)) {
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    for (const auto& [client, seconds] : used) {
      EXPECT_NEAR(seconds, 1, 0.02) << client;
      EXPECT_NEAR(seconds, order.used_seconds(client), 1e-9);
    }
  }
}

TEST(PreparationOrder, a_client_that_comes_anew_owes_nothing_and_has_saved_nothing_up) {
  PreparationOrder order(without_credit());
  order.add("flood", 10, kStart);
  ASSERT_EQ(order.next(kStart)->id, 1U);
  EXPECT_TRUE(order.charge(1, 100, kStart));
  const Id late = order.add("late", 10, kStart);
  EXPECT_FALSE(order.charge(1, 0.002, kStart));
  ASSERT_EQ(order.next(kStart)->id, late);
  EXPECT_FALSE(order.charge(late, 0.004, kStart));  // more than the other one by now
  EXPECT_EQ(order.next(kStart)->id, 1U);
}

TEST(PreparationOrder, the_first_moments_are_brisk_while_there_is_credit) {
  PreparationLimits limits;
  PreparationOrder order(limits);
  order.add("a", 10, kStart);
  EXPECT_TRUE(order.next(kStart)->is_brisk);
  EXPECT_TRUE(order.charge(1, 0.0005, kStart));
  EXPECT_FALSE(order.charge(1, 0.0006, kStart));  // more than its first moments
  const auto later = order.next(kStart);
  EXPECT_EQ(later->id, 1U);
  EXPECT_FALSE(later->is_brisk);
  // Another client needs no ordinary turn.
  const Id other = order.add("b", 10, kStart);
  const auto turn = order.next(kStart);
  ASSERT_TRUE(turn);
  EXPECT_EQ(turn->id, other);
  EXPECT_TRUE(turn->is_brisk);
}

TEST(PreparationOrder, a_client_that_has_used_much_has_no_credit_until_time_has_gone_by) {
  PreparationLimits limits;
  PreparationOrder order(limits);
  const auto brisk_jobs = [&](Time now) {
    for (int count = 0;; ++count) {
      const Id id = order.add("a", 10, now);
      const auto turn = order.next(now);
      const bool brisk = turn && turn->is_brisk;
      order.end(id, brisk ? 0.001 : 0, now);
      if (!brisk) return count;
    }
  };
  EXPECT_EQ(brisk_jobs(kStart), 10);
  EXPECT_EQ(brisk_jobs(kStart), 0);
  EXPECT_EQ(brisk_jobs(kStart + std::chrono::milliseconds(250)), 5);
  // All clients together are bounded, too.
  size_t all = 0;
  for (int client = 0; client < 100; ++client) {
    const Time now = kStart + std::chrono::hours(1);
    const Id id = order.add("client " + std::to_string(client), 10, now);
    all += order.next(now)->is_brisk ? 1 : 0;
    order.end(id, 0.001, now);
  }
  EXPECT_EQ(all, 50U);
}

TEST(PreparationOrder, bodies_that_have_begun_fit_their_room) {
  PreparationLimits limits = without_credit(8);
  limits.small_body_bytes = 10;
  limits.room_bytes = 100;
  PreparationOrder order(limits);
  order.add("a", 40, kStart);
  order.add("a", 40, kStart);
  order.add("b", 60, kStart);
  order.add("c", 30, kStart);
  order.add("d", 10, kStart);
  EXPECT_EQ(order.next(kStart)->id, 1U);
  EXPECT_EQ(order.next(kStart)->id, 3U);  // a second one of a's were more than half
  EXPECT_EQ(order.next(kStart)->id, 5U);  // small ones have a room of their own
  EXPECT_FALSE(order.next(kStart).has_value());
  EXPECT_EQ(order.taken_bytes(), 110U);
  order.end(1, 0.001, kStart);
  EXPECT_EQ(order.next(kStart)->id, 4U);
  EXPECT_FALSE(order.next(kStart).has_value());  // a's second one would fit no more
  order.end(3, 0.001, kStart);
  EXPECT_EQ(order.next(kStart)->id, 2U);
}

TEST(PreparationOrder, what_is_larger_than_the_room_has_it_alone_and_is_not_overtaken) {
  PreparationLimits limits = without_credit(8);
  limits.small_body_bytes = 10;
  limits.room_bytes = 100;
  PreparationOrder order(limits);
  order.add("a", 20, kStart);
  ASSERT_EQ(order.next(kStart)->id, 1U);
  order.add("b", 1000, kStart);
  order.add("c", 20, kStart);
  EXPECT_FALSE(order.next(kStart).has_value());
  order.end(1, 0.001, kStart);
  EXPECT_EQ(order.next(kStart)->id, 2U);
  EXPECT_EQ(order.taken_bytes(), 100U);
  EXPECT_FALSE(order.next(kStart).has_value());
  order.end(2, 0.001, kStart);
  EXPECT_EQ(order.next(kStart)->id, 3U);
}

TEST(Preparation, runs_tasks_on_other_threads_and_passes_on_what_they_throw) {
  Preparation preparation(PreparationLimits{});
  std::thread::id where;
  preparation.run("a", 10, [&] { where = std::this_thread::get_id(); });
  EXPECT_NE(where, std::this_thread::get_id());
  EXPECT_THROW(preparation.run("a", 10, [] { throw std::runtime_error("no"); }),
               std::runtime_error);
  EXPECT_EQ(preparation.waiting(), 0U);
  EXPECT_EQ(preparation.taken_bytes(), 0U);
}

TEST(Preparation, counts_the_steps_of_a_tasks_pause_points) {
  Preparation preparation(PreparationLimits{});
  EXPECT_EQ(preparation.run("a", 10, [] {}), 0U);
  EXPECT_EQ(preparation.run("a", 10,
                            [] {
                              pause_point(64);
                              pause_point();
                              pause_point(6);
                            }),
            70U);
}

// A task that never ends by itself must let another client's through.
TEST(Preparation, a_long_task_makes_way_where_it_pauses) {
  Preparation preparation(without_credit());
  std::atomic<bool> has_begun = false;
  std::atomic<bool> other_ran = false;
  std::thread long_one([&] {
    preparation.run("flood", 10, [&] {
      has_begun = true;
      while (!other_ran) pause_point();
    });
  });
  while (!has_begun) std::this_thread::yield();
  preparation.run("other", 10, [&] { other_ran = true; });
  long_one.join();
}

TEST(Preparation, many_tasks_of_many_clients_all_end) {
  Preparation preparation(PreparationLimits{});
  std::atomic<size_t> done = 0;
  std::vector<std::thread> threads;
  for (size_t index = 0; index < 40; ++index) {
    threads.emplace_back([&, index] {
      for (int count = 0; count < 5; ++count) {
        preparation.run(std::to_string(index % 7), (index % 3) * (size_t{3} << 20U), [&] {
          for (int step = 0; step < 1000; ++step) pause_point();
          ++done;
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, 200U);
  EXPECT_EQ(preparation.taken_bytes(), 0U);
}

}  // namespace
}  // namespace lockstep
