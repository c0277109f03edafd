#include "server/api/common/preparation.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "engine/base/mutex.h"
#include "engine/base/pause_point.h"
#include "engine/base/thread_priority.h"
#include "server/http/answer_memory.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// Threads of each priority that stay when they have no job.
constexpr size_t kRestingMost = 4;
constexpr std::chrono::seconds kRest{5};  // and end if none has come after this
// How often a task looks at the clock of its processor time, which is a system call.
constexpr std::chrono::microseconds kLookInterval{200};
// A task that holds so much more than it has told does not wait for that.
constexpr uint64_t kTellBytes = 256 << 10;

// The seconds that this thread has run on processors.
double used_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

struct Preparation::Job {
  PreparationOrder::Id id = 0;
  const std::function<void()>* task = nullptr;
  bool has_turn = false;
  bool is_brisk = false;  // its turn
  bool is_low = false;    // its thread's priority
  bool has_ended = false;
  bool runs_in_place = false;  // on the thread that waits for it: there is no other
  double charged = 0;          // processor time of its thread that it was charged for
  uint64_t steps = 0;          // of its pause points
  uint64_t told_bytes = 0;     // that it holds
  std::exception_ptr thrown;
  ConditionVariable given;  // a turn
  ConditionVariable done;   // has_ended or runs_in_place
};

struct Preparation::Seat {
  std::thread thread;
  Job* job = nullptr;
  bool is_low = false;
  ConditionVariable changed;
};

// Takes the turns of the job that runs on this thread, and counts its steps.
class Preparation::Pauses : public PauseHandler {
 public:
  Pauses(Preparation& preparation, Job& job) : preparation_(preparation), job_(job) {
    pause_handler = this;
  }
  ~Pauses() override { pause_handler = nullptr; }
  Pauses(const Pauses&) = delete;
  Pauses& operator=(const Pauses&) = delete;

  void pause(uint64_t steps) override {
    job_.steps += steps;
    if (job_.runs_in_place) return;
    if (held_bytes < job_.told_bytes + kTellBytes && Clock::now() < next_look_) return;
    preparation_.wait_for_turn(job_, used_seconds(), held_bytes);
    next_look_ = Clock::now() + kLookInterval;
  }

 private:
  Preparation& preparation_;
  Job& job_;
  Clock::time_point next_look_ = Clock::now() + kLookInterval;
};

Preparation::Preparation(const PreparationLimits& limits) : order_(limits) {
  for (std::vector<Seat*>* const resting : {&resting_, &resting_low_}) {
    resting->reserve(kRestingMost);
  }
}

Preparation::~Preparation() {
  const MutexLock lock(mutex_);
  is_stopping_ = true;
  for (const auto& seat : seats_) seat->changed.notify_one();
  while (!seats_.empty()) all_gone_.wait(mutex_);
  join(ended_);
}

void Preparation::join(const Seats& seats) {
  for (const auto& seat : seats) seat->thread.join();
}

uint64_t Preparation::run(const std::string& client, size_t body_bytes,
                          const std::function<void()>& task) {
  Job job;
  job.task = &task;
  Seats ended;
  size_t left_bytes = 0;
  {
    MutexLock lock(mutex_);
    // All the memory that this takes comes before the first thing that would have to be taken back.
    constexpr PreparationOrder::Id kNone = 0;
    auto entry = jobs_.extract(jobs_.emplace(kNone, &job).first);
    job.id = order_.add(client, body_bytes, Clock::now());
    entry.key() = job.id;
    jobs_.insert(std::move(entry));
    std::swap(ended, ended_);
    give_turns();
    while (!job.has_ended && !job.runs_in_place) job.done.wait(mutex_);
    if (job.runs_in_place) {
      lock.unlock();
      {
        const Pauses pauses(*this, job);
        do_task(job);
      }
      lock.lock();
      end(job);
    }
    if (order_.begun_count() == 0) left_bytes = std::exchange(most_taken_bytes_, 0);
  }
  join(ended);
  // A million small pieces that are free again stay with the process unless it is told to look.
  // On this thread: it locks what others allocate from, and has their priority.
  give_back_memory(left_bytes);
  if (job.thrown) std::rethrow_exception(job.thrown);
  return job.steps;
}

void Preparation::give_turns() {
  while (const auto turn = order_.next(Clock::now())) {
    Job& job = *jobs_.at(turn->id);
    job.has_turn = true;
    job.is_brisk = turn->is_brisk;
    if (turn->is_new) {
      begin(job, turn->is_brisk);
    } else {
      job.given.notify_one();
    }
  }
  most_taken_bytes_ = std::max(most_taken_bytes_, order_.taken_bytes());
}

// On a thread that rests, or on a new one: it will lower its priority itself.
void Preparation::begin(Job& job, bool is_brisk) {
  std::vector<Seat*>& first = is_brisk || resting_low_.empty() ? resting_ : resting_low_;
  Seat* seat = nullptr;
  if (!first.empty()) {
    seat = first.back();
    first.pop_back();
  } else {
    seat = add_thread();
  }
  if (seat == nullptr) {
    job.runs_in_place = true;
    job.done.notify_one();
    return;
  }
  seat->job = &job;
  seat->changed.notify_one();
}

// Null if the machine gives no thread, or no memory for one.
Preparation::Seat* Preparation::add_thread() {
  Seats added;
  try {
    Seat& seat = *added.emplace_back(std::make_unique<Seat>());
    seat.thread = std::thread([this, &seat] { work(seat); });
  } catch (const std::exception&) {
    return nullptr;
  }
  seats_.splice(seats_.end(), added);
  Seat& seat = *seats_.back();
  pthread_setname_np(seat.thread.native_handle(), "prepare");
  return &seat;
}

bool Preparation::wait_for_job(Seat& seat) {
  std::vector<Seat*>& resting = seat.is_low ? resting_low_ : resting_;
  if (seat.job == nullptr && !is_stopping_ && resting.size() < kRestingMost) {
    resting.push_back(&seat);
    const auto deadline = ConditionVariable::deadline_in(kRest);
    while (seat.job == nullptr && !is_stopping_ && seat.changed.wait_until(mutex_, deadline)) {
    }
    if (seat.job == nullptr && !is_stopping_) std::erase(resting, &seat);
  }
  return seat.job != nullptr;
}

void Preparation::do_task(Job& job) {
  job.charged = used_seconds();
  try {
    (*job.task)();
  } catch (...) {
    job.thrown = std::current_exception();
  }
}

void Preparation::work(Seat& seat) {
  MutexLock lock(mutex_);
  while (seat.job != nullptr || wait_for_job(seat)) {
    Job& job = *seat.job;
    job.is_low = seat.is_low;
    lock.unlock();
    lower_if_needed(job);
    {
      const Pauses pauses(*this, job);
      do_task(job);
    }
    lock.lock();
    seat.is_low = job.is_low;
    seat.job = nullptr;
    end(job);
  }
  ended_.splice(ended_.end(), seats_,
                std::ranges::find(seats_, &seat, &std::unique_ptr<Seat>::get));
  if (seats_.empty()) all_gone_.notify_one();
}

// On the job's thread, in its turn.
void Preparation::lower_if_needed(Job& job) {
  if (job.is_brisk || job.is_low) return;
  lower_thread_priority();
  job.is_low = true;
}

// On the job's thread, which has used so much processor time by now.
void Preparation::wait_for_turn(Job& job, double seconds, uint64_t held_bytes) {
  {
    const MutexLock lock(mutex_);
    order_.hold(job.id, held_bytes);
    const bool has_sunk = held_bytes < std::exchange(job.told_bytes, held_bytes);
    const bool goes_on = order_.charge(job.id, seconds - job.charged, Clock::now());
    job.charged = seconds;
    if (!goes_on) job.has_turn = false;
    if (!goes_on || has_sunk) give_turns();
    if (goes_on) return;
    while (!job.has_turn) job.given.wait(mutex_);
  }
  lower_if_needed(job);
}

// On the job's thread; from here on the job may be gone.
void Preparation::end(Job& job) {
  order_.end(job.id, used_seconds() - job.charged, Clock::now());
  jobs_.erase(job.id);
  job.has_ended = true;
  job.done.notify_one();
  give_turns();
}

size_t Preparation::waiting() const {
  const MutexLock lock(mutex_);
  return order_.waiting_count();
}

size_t Preparation::taken_bytes() const {
  const MutexLock lock(mutex_);
  return order_.taken_bytes();
}

PreparationLimits preparation_limits(size_t worker_count) {
  const size_t processors = std::thread::hardware_concurrency();
  PreparationLimits limits;
  limits.turns = processors > worker_count ? processors - worker_count : 1;
  return limits;
}

}  // namespace lockstep
