// In which order requests are prepared. Times are values here; threads are waited for.
#include "server/api/common/preparation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/pause_point.h"
#include "tests/tried_cases.h"

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
  for (uint32_t seed = 1; seed <= tried_cases(100); ++seed) {
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

TEST(PreparationOrder, bodies_that_have_begun_fit_their_budget) {
  PreparationLimits limits = without_credit(8);
  limits.small_body_bytes = 10;
  limits.budget_bytes = 100;
  PreparationOrder order(limits);
  order.add("a", 40, kStart);
  order.add("a", 40, kStart);
  order.add("b", 60, kStart);
  order.add("c", 30, kStart);
  order.add("d", 10, kStart);
  EXPECT_EQ(order.next(kStart)->id, 1U);
  EXPECT_EQ(order.next(kStart)->id, 3U);  // a second one of a's were more than half
  EXPECT_EQ(order.next(kStart)->id, 5U);  // small ones have a budget of their own
  EXPECT_FALSE(order.next(kStart).has_value());
  EXPECT_EQ(order.taken_bytes(), 110U);
  order.end(1, 0.001, kStart);
  EXPECT_EQ(order.next(kStart)->id, 4U);
  EXPECT_FALSE(order.next(kStart).has_value());  // a's second one would fit no more
  order.end(3, 0.001, kStart);
  EXPECT_EQ(order.next(kStart)->id, 2U);
}

TEST(PreparationOrder, what_is_larger_than_the_budget_has_it_alone_and_is_not_overtaken) {
  PreparationLimits limits = without_credit(8);
  limits.small_body_bytes = 10;
  limits.budget_bytes = 100;
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

constexpr size_t kMiB = size_t{1} << 20U;
constexpr size_t kMostOfOne = 64 * kMiB;  // what a job may make (TemplateLimits, GrammarLimits)

// Jobs that make ever more until they end.
class Growing {
 public:
  explicit Growing(const PreparationLimits& limits) : order_(limits), limits_(limits) {}

  // `seconds` of processor time, and by its end so many bytes.
  Id add(const std::string& client, double seconds, size_t bytes) {
    const Id id = order_.add(client, 100, kStart);
    jobs_[id] = {client, seconds, bytes};
    return id;
  }
  // One of those that have a turn goes on for a millisecond.
  void step(std::mt19937& random) {
    while (const auto turn = order_.next(kStart)) running_.push_back(turn->id);
    most_begun_ = std::max(most_begun_, order_.begun_count());
    ASSERT_FALSE(running_.empty()) << "nobody goes on";
    const size_t at = random() % running_.size();
    const Id id = running_[at];
    Job& job = jobs_.at(id);
    job.used = std::min(job.seconds, job.used + 0.001);
    const auto held = static_cast<size_t>(static_cast<double>(job.bytes) * job.used / job.seconds);
    const bool has_ended = job.used >= job.seconds;
    if (has_ended) {
      order_.end(id, 0.001, kStart);
      jobs_.erase(id);
    } else {
      order_.hold(id, held);
      most_held_ = std::max(most_held_, order_.held_bytes());
    }
    if (!has_ended && order_.charge(id, 0.001, kStart)) return;
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  bool has_ended(Id id) const { return !jobs_.contains(id); }
  bool is_done() const { return jobs_.empty(); }
  size_t most_held() const { return most_held_; }
  size_t most_begun() const { return most_begun_; }
  size_t held() const { return order_.held_bytes(); }
  // The most that may be held, where each step of a job adds so many bytes.
  size_t bound(size_t step_bytes) const {
    return limits_.held_bytes + kMostOfOne + limits_.begun * (limits_.light_bytes + step_bytes);
  }

 private:
  struct Job {
    std::string client;
    double seconds = 0;
    size_t bytes = 0;
    double used = 0;
  };

  PreparationOrder order_;
  const PreparationLimits limits_;
  std::map<Id, Job> jobs_;
  std::vector<Id> running_;
  size_t most_held_ = 0;
  size_t most_begun_ = 0;
};

// However many clients ask for the dearest there is: by turns, each would come to hold it.
TEST(PreparationOrder, what_waits_half_prepared_is_bounded_in_number_and_bytes) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    PreparationLimits limits;
    limits.turns = seed;
    limits.begun = 32;
    Growing growing(limits);
    for (size_t client = 0; client < 60; ++client) {
      for (size_t job = 0; job < 1 + client % 3; ++job) {
        growing.add("client " + std::to_string(client), 0.032, kMostOfOne);
      }
    }
    while (!growing.is_done()) ASSERT_NO_FATAL_FAILURE(growing.step(random));
    EXPECT_LE(growing.most_held(), growing.bound(2 * kMiB));
    EXPECT_GT(growing.most_held(), limits.held_bytes / 2);
    EXPECT_LE(growing.most_begun(), limits.begun);
    EXPECT_EQ(growing.held(), 0U);
  }
}

// One client's flood, as large and as dear as it likes.
TEST(PreparationOrder, beside_one_that_floods_every_others_job_begins_and_ends) {
  for (uint32_t seed = 1; seed <= tried_cases(10); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    PreparationLimits limits;
    limits.turns = 1 + seed % 32;
    Growing growing(limits);
    for (size_t job = 0; job < 1000; ++job) growing.add("flood", 0.256, kMostOfOne);
    for (int step = 0; step < 5000; ++step) growing.step(random);
    for (size_t other = 0; other < 20; ++other) {
      const Id dear = growing.add("other " + std::to_string(other), 0.032, 32 * kMiB);
      size_t steps = 0;
      for (; !growing.has_ended(dear); ++steps) ASSERT_NO_FATAL_FAILURE(growing.step(random));
      // It has at least every second of all steps but those of the flood's turns that run.
      EXPECT_LT(steps, 200 + 100 * limits.turns) << "other " << other;
    }
    EXPECT_LE(growing.most_held(), growing.bound(kMiB));
  }
}

TEST(PreparationOrder, who_holds_much_waits_until_others_have_let_go_but_for_the_first) {
  PreparationLimits limits = without_credit(8);
  limits.held_bytes = 100;
  limits.light_bytes = 10;
  PreparationOrder order(limits);
  for (const char* client : {"a", "b", "c"}) order.add(client, 10, kStart);
  for (Id id = 1; id <= 3; ++id) ASSERT_EQ(order.next(kStart)->id, id);
  order.hold(1, 60);
  EXPECT_TRUE(order.charge(1, 0.0001, kStart));
  order.hold(2, 50);
  EXPECT_FALSE(order.charge(2, 0.0001, kStart));  // 110 of 100
  order.hold(3, 10);
  EXPECT_TRUE(order.charge(3, 0.0001, kStart));
  order.hold(1, 80);
  EXPECT_TRUE(order.charge(1, 0.0001, kStart));  // the first of all
  EXPECT_FALSE(order.next(kStart).has_value());
  order.hold(1, 5);
  const auto turn = order.next(kStart);
  ASSERT_TRUE(turn.has_value());
  EXPECT_EQ(turn->id, 2U);
  EXPECT_FALSE(turn->is_new);
  EXPECT_EQ(order.held_bytes(), 65U);
  for (Id id = 1; id <= 3; ++id) order.end(id, 0, kStart);
  EXPECT_EQ(order.held_bytes(), 0U);
}

TEST(PreparationOrder, a_client_leaves_places_to_begin_for_others) {
  PreparationLimits limits = without_credit(100);
  limits.begun = 9;
  PreparationOrder order(limits);
  for (int job = 0; job < 20; ++job) order.add("flood", 10, kStart);
  size_t begun = 0;
  while (order.next(kStart)) ++begun;
  EXPECT_EQ(begun, 6U);  // twice what it leaves
  for (int other = 0; other < 5; ++other) {
    order.add("other " + std::to_string(other), 10, kStart);
    EXPECT_EQ(order.next(kStart).has_value(), other < 3) << other;
  }
  order.end(1, 0.001, kStart);
  EXPECT_TRUE(order.next(kStart).has_value());
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

// Each would hold four times its share if all went on by turns.
TEST(Preparation, tasks_that_hold_much_wait_for_one_another) {
  constexpr size_t kTasks = 40;
  constexpr size_t kStep = size_t{64} << 10U;
  constexpr size_t kMost = 4 * kMiB;
  PreparationLimits limits = without_credit(2);
  limits.slice_seconds = 0;
  limits.held_bytes = 8 * kMiB;
  limits.light_bytes = kMiB / 2;
  limits.begun = 12;
  Preparation preparation(limits);
  std::atomic<size_t> held = 0;
  std::atomic<size_t> most = 0;
  std::vector<std::thread> threads;
  for (size_t index = 0; index < kTasks; ++index) {
    threads.emplace_back([&, index] {
      preparation.run(std::to_string(index), 10, [&] {
        for (size_t own = 0; own < kMost; own += kStep) {
          note_held_bytes(kStep);
          const size_t now = held += kStep;
          size_t seen = most;
          while (seen < now && !most.compare_exchange_weak(seen, now)) {
          }
          pause_point();
        }
        held -= kMost;
        note_held_bytes(-static_cast<int64_t>(kMost));
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(held, 0U);
  // Each may hold more than it has told of: less than half a MiB.
  EXPECT_LE(most, limits.held_bytes + kMost + limits.begun * (limits.light_bytes + kMiB / 2));
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
