// The threads that prepare requests, in the order of preparation_order.h: a request's own thread
// waits meanwhile. So the work that a request causes before the engine knows of it lies below the
// engine's workers in priority, and no client's requests hold up another's.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/mutex.h"
#include "server/api/common/preparation_order.h"

namespace lockstep {

// Any thread.
class Preparation {
 public:
  explicit Preparation(const PreparationLimits& limits);
  // Nothing may run any more.
  ~Preparation();
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;

  // Runs `task` in its turns on a thread of this and returns when it has ended, with what it has
  // thrown. The steps of its pause points: what its preparation took beyond what its bytes tell of,
  // the same for the same task on any machine under any load. `client`: who takes turns with
  // others; `body_bytes`: of the text that the task makes values of, which are gone when it ends. A
  // task takes turns with others where it reaches pause_point(). It waits neither for the engine
  // nor for a client, and never calls run(). Throws std::bad_alloc, too, where there is no memory
  // to let the task wait: it has not begun then.
  uint64_t run(const std::string& client, size_t body_bytes, const std::function<void()>& task);

  size_t waiting() const;      // tasks without a turn
  size_t taken_bytes() const;  // of bodies whose tasks have begun

 private:
  struct Job;
  class Pauses;
  struct Seat;  // of a thread
  using Seats = std::list<std::unique_ptr<Seat>>;

  // Once a job waits, nothing that is done with it takes memory, but for a new thread: where there
  // is none for that, the job does without.
  void give_turns() LOCKSTEP_REQUIRES(mutex_);
  void begin(Job& job, bool is_brisk) LOCKSTEP_REQUIRES(mutex_);
  Seat* add_thread() LOCKSTEP_REQUIRES(mutex_);
  static void join(const Seats& seats);
  void work(Seat& seat);
  static void do_task(Job& job);
  static void lower_if_needed(Job& job);
  bool wait_for_job(Seat& seat) LOCKSTEP_REQUIRES(mutex_);
  void wait_for_turn(Job& job, double seconds, uint64_t held_bytes) LOCKSTEP_EXCLUDES(mutex_);
  void end(Job& job) LOCKSTEP_REQUIRES(mutex_);

  mutable Mutex mutex_;
  PreparationOrder order_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<PreparationOrder::Id, Job*> jobs_ LOCKSTEP_GUARDED_BY(mutex_);
  Seats seats_ LOCKSTEP_GUARDED_BY(mutex_);
  // Threads of ordinary priority without a job; those that have lowered theirs.
  std::vector<Seat*> resting_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Seat*> resting_low_ LOCKSTEP_GUARDED_BY(mutex_);
  Seats ended_ LOCKSTEP_GUARDED_BY(mutex_);                  // their threads are to be joined
  ConditionVariable all_gone_;                               // seats_ is empty
  size_t most_taken_bytes_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // since memory was given back
  bool is_stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

// As many as there are processors that the engine's workers leave, and at least one.
PreparationLimits preparation_limits(size_t worker_count);

}  // namespace lockstep
