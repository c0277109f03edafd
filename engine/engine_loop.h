// The engine's thread: takes requests from an inbox, lets the scheduler form passes, runs them, and
// hands the logits to the generations. Schedule, run, postprocess, until it is told to stop.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/engine_counters.h"
#include "engine/generation.h"
#include "engine/runtime/executor.h"
#include "engine/scheduler/scheduler.h"

namespace lockstep {

class EngineLoop {
 public:
  // All references must outlive this. Starts the thread.
  EngineLoop(Executor& executor, const SchedulerLimits& limits, size_t waiting_most,
             const Tokenizer& tokenizer, size_t vocabulary_size, EngineCounters& counters);
  // Cancels what is left and joins the thread.
  ~EngineLoop();

  // Any thread. kUnavailable when draining or full.
  Result<RequestId> submit(Request request);
  void cancel(RequestId id);
  void drain(double seconds);

  // Runs `task` on the engine's thread, between passes, if no request is running or waiting then;
  // returns when that is decided and done. The task must not throw.
  void run_if_idle(const std::function<void()>& task);

 private:
  // What other threads have asked for since the last step. Guarded by mutex_.
  struct Inbox {
    std::vector<std::unique_ptr<Generation>> submitted;
    std::vector<RequestId> cancelled;
    const std::function<void()>* task = nullptr;
    bool cancel_all = false;
    bool stop = false;

    bool empty() const {
      return submitted.empty() && cancelled.empty() && task == nullptr && !cancel_all && !stop;
    }
  };

  void work();
  void accept(Inbox& inbox);
  void cancel_now(RequestId id);
  void end(Generation& generation, FinishReason reason, const std::string& error);
  void step();
  void fill_batch(const Schedule& schedule);
  void postprocess(const Schedule& schedule);
  void use_logits(Generation& generation, const Chunk& chunk, size_t row);
  void advance(Generation& generation, std::span<const float> logits);
  void retire(Generation& generation);
  void publish_gauges();

  Executor& executor_;
  Scheduler scheduler_;
  const size_t open_most_;  // that run or wait
  const Tokenizer& tokenizer_;
  const size_t vocabulary_size_;
  EngineCounters& counters_;
  Batch batch_;
  std::map<RequestId, std::unique_ptr<Generation>> generations_;
  std::unordered_map<SequenceId, Generation*> by_sequence_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;     // the inbox is not empty
  std::condition_variable changed_;  // open_count_ or the inbox's task has changed
  Inbox inbox_;                      // guarded by mutex_
  size_t open_count_ = 0;            // guarded by mutex_: submitted and not ended
  bool draining_ = false;            // guarded by mutex_
  std::atomic<RequestId> next_id_ = 1;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace lockstep
