#include "engine/base/mutex.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace lockstep {
namespace {

struct Counter {
  Mutex mutex;
  ConditionVariable changed;
  int count LOCKSTEP_GUARDED_BY(mutex) = 0;

  void add() {
    const MutexLock lock(mutex);
    ++count;
    changed.notify_all();
  }
};

TEST(Mutex, no_two_threads_hold_it) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 10000;
  Counter counter;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) counter.add();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const MutexLock lock(counter.mutex);
  EXPECT_EQ(counter.count, kThreads * kRounds);
}

// Another thread could never add while the lock is held, nor after a second unlock.
TEST(MutexLock, gives_the_mutex_back_early_and_takes_it_again) {
  Counter counter;
  {
    MutexLock lock(counter.mutex);
    lock.unlock();
    std::thread([&] { counter.add(); }).join();
    lock.lock();
    EXPECT_EQ(counter.count, 1);
    lock.unlock();
  }
  std::thread([&] { counter.add(); }).join();
  const MutexLock lock(counter.mutex);
  EXPECT_EQ(counter.count, 2);
}

TEST(ConditionVariable, a_wait_frees_the_mutex_and_holds_it_again) {
  Counter counter;
  MutexLock lock(counter.mutex);
  std::thread other([&] { counter.add(); });
  while (counter.count == 0) counter.changed.wait(counter.mutex);
  counter.count += 10;  // the other has no more to add
  lock.unlock();
  other.join();
  lock.lock();
  EXPECT_EQ(counter.count, 11);
}

TEST(ConditionVariable, a_wait_ends_at_its_deadline_and_not_before) {
  Counter counter;
  const MutexLock lock(counter.mutex);
  const auto deadline = ConditionVariable::deadline_in(std::chrono::milliseconds(20));
  while (counter.count == 0 && counter.changed.wait_until(counter.mutex, deadline)) {
  }
  EXPECT_GE(ConditionVariable::Clock::now(), deadline);
  EXPECT_EQ(counter.count, 0);
}

TEST(ConditionVariable, deadlines_are_rounded_up) {
  const auto before = ConditionVariable::Clock::now();
  const auto deadline = ConditionVariable::deadline_in(std::chrono::duration<double>(1e-10));
  EXPECT_GT(deadline, before);
}

}  // namespace
}  // namespace lockstep
