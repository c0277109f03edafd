// The locks of the control plane: those of the standard library, with annotations by which clang
// checks that what they guard is used with the lock held. They cost what those cost. The tree has
// no others.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

// The macros say in the code which lock guards what. Clang's thread safety analysis checks it
// (-Wthread-safety, an error in the clang build); for other compilers it is nothing. The attributes
// are described at https://clang.llvm.org/docs/ThreadSafetyAnalysis.html.
#ifdef __clang__
#define LOCKSTEP_THREAD_ATTRIBUTE(...) __attribute__((__VA_ARGS__))
#else
#define LOCKSTEP_THREAD_ATTRIBUTE(...)
#endif

// Types: a lock; an object that holds a lock while it lives.
#define LOCKSTEP_CAPABILITY(name) LOCKSTEP_THREAD_ATTRIBUTE(capability(name))
#define LOCKSTEP_SCOPED_CAPABILITY LOCKSTEP_THREAD_ATTRIBUTE(scoped_lockable)

// Members: read and written only with the lock held.
#define LOCKSTEP_GUARDED_BY(mutex) LOCKSTEP_THREAD_ATTRIBUTE(guarded_by(mutex))

// Functions and lambdas: called with the lock held; called without it, since they take it.
#define LOCKSTEP_REQUIRES(...) LOCKSTEP_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define LOCKSTEP_EXCLUDES(...) LOCKSTEP_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))

// Functions that take the lock and keep it; that give it back.
#define LOCKSTEP_ACQUIRE(...) LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define LOCKSTEP_RELEASE(...) LOCKSTEP_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))

namespace lockstep {

// A std::mutex. Each guards something: members bear LOCKSTEP_GUARDED_BY with its name.
class LOCKSTEP_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() LOCKSTEP_ACQUIRE() { mutex_.lock(); }
  void unlock() LOCKSTEP_RELEASE() { mutex_.unlock(); }

 private:
  friend class ConditionVariable;
  std::mutex mutex_;
};

// Holds a mutex while it lives, but for the time between unlock() and lock(). Its own thread's.
class LOCKSTEP_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) LOCKSTEP_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() LOCKSTEP_RELEASE() {
    if (is_held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() LOCKSTEP_RELEASE() {
    is_held_ = false;
    mutex_.unlock();
  }
  void lock() LOCKSTEP_ACQUIRE() {
    mutex_.lock();
    is_held_ = true;
  }

 private:
  Mutex& mutex_;
  bool is_held_ = true;
};

// A std::condition_variable. Each wait may also end without a reason, so it stands in a loop that
// looks at the condition; the loop is written out where it is, since the analysis does not follow a
// condition that is handed over as a function:
//
//   while (queue_.empty()) changed_.wait(mutex_);
//
//   const auto deadline = ConditionVariable::deadline_in(kPatience);
//   while (queue_.empty() && changed_.wait_until(mutex_, deadline)) {
//   }
class ConditionVariable {
 public:
  using Clock = std::chrono::steady_clock;

  // The time point `patience` from now, rounded up.
  template <typename Duration>
  static Clock::time_point deadline_in(Duration patience) {
    return Clock::now() + std::chrono::ceil<Clock::duration>(patience);
  }

  // Waits with the mutex unlocked, and holds it again on return.
  void wait(Mutex& mutex) LOCKSTEP_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    static_cast<void>(lock.release());  // the caller's lock unlocks it
  }
  // The same; false once the deadline is past.
  bool wait_until(Mutex& mutex, Clock::time_point deadline) LOCKSTEP_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const std::cv_status status = condition_.wait_until(lock, deadline);
    static_cast<void>(lock.release());
    return status == std::cv_status::no_timeout;
  }

  // Any thread, with the mutex held or without.
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace lockstep
