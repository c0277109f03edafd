// The engine's thread: takes requests from an inbox, lets the scheduler form passes, runs them, and
// hands the logits to the generations. Schedule, run, postprocess, until it is told to stop.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/drafting/earlier_answers.h"
#include "engine/runtime/executor.h"
#include "engine/scheduler/queue_shares.h"
#include "engine/scheduler/scheduler.h"
#include "engine/serving/draft_stage.h"
#include "engine/serving/engine_counters.h"
#include "engine/serving/generation.h"
#include "engine/serving/loop_health.h"
#include "engine/serving/throughput.h"

namespace lockstep {

// The limits of what may wait for its first pass. May change at any time, by any thread.
struct WaitingLimits {
  std::atomic<size_t> requests = 0;
  std::atomic<size_t> prompt_tokens = 0;  // one request is taken whatever its length
};

// Called by the engine's thread; either may be none.
struct PassHooks {
  std::function<Result<void>()> before;          // each pass; where it fails, the pass does
  std::function<void(const Error&)> on_failure;  // once, before requests hear of it; throws nothing
};

// The drafters of requests that bring none; where both are null those take no drafts.
struct LoopDrafters {
  const DrafterRow* row = nullptr;
  DraftStage* stage = nullptr;  // outlives the loop
};

class EngineLoop {
 public:
  // All references must outlive this. Starts the thread.
  EngineLoop(Executor& executor, const SchedulerLimits& limits, const WaitingLimits& waiting,
             const Tokenizer& tokenizer, size_t vocabulary_size, RowUse use,
             EngineCounters& counters, PassHooks hooks, LoopDrafters drafters);
  // Cancels what is left and joins the thread.
  ~EngineLoop();

  // Any thread. All or none; kUnavailable when draining, full or failed.
  Result<std::vector<RequestId>> submit(std::vector<Request> requests);
  // Fails as submit() would for a request of one token if the queue is full for its tenant. Takes a
  // lock only where it is full, and never for long.
  Result<void> check_queue(const std::string& tenant) const;
  // Takes no memory. A request that has ended, or never was, is left alone.
  void cancel(RequestId id) noexcept;
  void drain(double seconds);

  // Runs `task` on the engine's thread, between passes, if no request is running or waiting then;
  // returns when that is decided and done. The task must throw nothing but std::bad_alloc, which
  // ends it. Where a pass of it fails, the engine has failed as if it had been a request's.
  void run_if_idle(const std::function<void()>& task);

  const LoopActivity& activity() const { return activity_; }

  // The first pass that failed, of requests or of a task, was the last one: what it has left in the
  // ranks' memory nobody knows. Any thread.
  std::optional<Error> failure() const;

 private:
  // Holds what other threads have asked for since the last step.
  struct Inbox {
    std::vector<std::unique_ptr<Generation>> submitted;
    std::vector<QueueShares::GroupId> displaced;
    const std::function<void()>* task = nullptr;
    bool has_cancelled = false;  // some of open_
    bool cancel_all = false;
    bool stop = false;

    bool empty() const {
      return submitted.empty() && displaced.empty() && task == nullptr && !has_cancelled &&
             !cancel_all && !stop;
    }
  };

  void work();
  std::unique_ptr<Generation> make_generation(Request request);
  QueueShares::Limits queue_limits() const;
  std::unexpected<Error> queue_full(QueueShares::Shortage shortage,
                                    const QueueShares::Demand& demand) const
      LOCKSTEP_REQUIRES(mutex_);
  std::unexpected<Error> full(Rejection reason, std::string message,
                              std::optional<int> retry_after_seconds = {}) const;
  Inbox wait_for_work() LOCKSTEP_EXCLUDES(mutex_);
  void run_task(const std::function<void()>& task);
  void end_task() LOCKSTEP_EXCLUDES(mutex_);
  void accept(Inbox& inbox);
  Wanted wanted_of(const Generation& generation) const;
  void add(std::unique_ptr<Generation>& generation);
  void enqueue(Generation& added);
  bool has_enqueued(Generation& generation);
  // False: memory was refused, and start_over() has been called.
  template <typename Part>
  bool has_memory_for(const Part& part);
  void start_over();
  // The share of the queue that one request holds.
  struct Place {
    RequestId id = 0;
    QueueShares::GroupId group = 0;
    size_t count = 0;
    size_t prompt_tokens = 0;
    bool waits = false;  // its prompt is among those that wait
  };
  static Place place_of(const Generation& generation);
  void give_up(const Place& place) LOCKSTEP_EXCLUDES(mutex_);
  void end_overdue();
  void end_cancelled() LOCKSTEP_EXCLUDES(mutex_);
  bool is_cancelled(RequestId id) const LOCKSTEP_EXCLUDES(mutex_);
  void end_displaced(const std::vector<QueueShares::GroupId>& groups);
  void end(Generation& generation, FinishReason reason, const std::string& error,
           bool usable = true);
  void step();
  Result<void> propose_drafts();
  void propose_draft(Generation& generation);
  bool propose_forced(Generation& generation);
  bool propose_by_row(Generation& generation, bool only_if_sure);
  std::span<const TokenId> own_draft(Generation& generation);
  std::span<const TokenId> earlier_draft(Generation& generation, size_t longer_than);
  void remember(const Generation& generation) noexcept;
  bool uses_engines(const Generation& generation) const;
  bool may_use_stage(const Generation& generation) const;
  std::span<const uint32_t> whole_pages(SequenceId sequence) const;
  Result<void> run_stage();
  Result<void> follow_pass(const Schedule& schedule);
  bool may_draft(const Request& request) const;
  std::span<const TokenId> draft(Generation& generation, size_t most);
  std::span<const TokenId> fitting(Generation& generation, std::span<const TokenId> drafts) const;
  std::unique_ptr<Drafter> make_drafter(const Generation& generation) const;
  bool has_learned(Generation& generation);
  void save_pages();
  void save_all_pages();
  void wait_for_store() LOCKSTEP_EXCLUDES(mutex_);
  Result<void> compute(const Schedule& schedule, bool has_begun);
  Result<void> begin_pass();
  Result<void> begin_ahead(const Schedule& schedule);
  void fill_ahead(const Schedule& schedule, const Schedule& promised);
  bool stage_reads_rows_of(const Schedule& schedule) const;
  bool picks_plainly(const Schedule& schedule) const;
  void check_pick(size_t row, TokenId token);
  void drop_ahead_if_void();
  bool take_ahead(const Schedule& schedule);
  void fail(Error error) LOCKSTEP_EXCLUDES(mutex_);
  bool has_failure() const LOCKSTEP_EXCLUDES(mutex_);
  void end_failed();
  void limit_prompts();
  void fill_batch(const Schedule& schedule);
  void postprocess(const Schedule& schedule);
  void use_logits(Generation& generation, const Chunk& chunk, size_t row);
  // Whether a row of the pass's logits is wanted of a chunk's token.
  bool wants_logits(const Generation& generation, const Chunk& chunk, size_t index) const;
  void use_states(Generation& generation, const Chunk& chunk, size_t row);
  void finish_pooled(Generation& generation, const Chunk& chunk);
  void use_hidden_rows(Generation& generation, const Chunk& chunk, size_t first_token);
  EngineCounters::Drafts& counters_of(const Generation& generation);
  void count_draft(Generation& generation, const Chunk& chunk);
  bool advance(Generation& generation, size_t row, LogitRow& logits, size_t place);
  void discard(Generation& generation);
  void retire(Generation& generation, bool usable = true);
  void leave(Generation& generation);
  void note_shares() LOCKSTEP_REQUIRES(mutex_);
  void publish_counters();
  void publish_gauges();

  Executor& executor_;
  Scheduler scheduler_;
  bool is_scheduler_changing_ = false;  // still true: it threw halfway, see start_over()
  const bool keeps_pages_;              // where they outlive the process
  bool has_pages_to_save_ = false;
  const size_t running_most_;
  const WaitingLimits& waiting_;
  const Tokenizer& tokenizer_;
  const size_t vocabulary_size_;
  const RowUse use_;
  EngineCounters& counters_;
  UnusableStreak unusable_streak_;
  const PassHooks hooks_;
  const LoopDrafters drafters_;
  LoopActivity activity_;
  Throughput throughput_;
  const Generation::Clock::time_point start_ = Generation::Clock::now();  // the scheduler's 0
  Batch batch_;
  Batch ahead_batch_;                          // of the pass that has begun ahead
  bool ahead_ = false;                         // the scheduler's promised pass has begun
  bool is_ahead_wrong_ = false;                // with another token than was picked
  Generation::Clock::time_point last_finish_;  // of a pass
  std::vector<float> hidden_rows_;             // reused
  std::vector<TokenId> drafts_;                // likewise, of one sequence
  std::vector<TokenId> earlier_drafts_;        // likewise, from earlier answers
  std::optional<EarlierAnswers> answers_;      // none: no drafts are made from them
  size_t learned_ = 0;                         // tokens that drafters were told before this pass
  std::vector<Generation*> staged_;            // for which the stage is to draft before this pass
  double stage_seconds_ = 0;                   // that it took
  bool stage_waits_ = false;  // it has drafts to make: no pass begins ahead of them
  std::map<RequestId, std::unique_ptr<Generation>> generations_;
  std::unordered_map<SequenceId, Generation*> by_sequence_;

  mutable Mutex mutex_;
  ConditionVariable wake_;     // the inbox is not empty
  ConditionVariable changed_;  // open_ or the inbox's task has changed
  Inbox inbox_ LOCKSTEP_GUARDED_BY(mutex_);
  QueueShares shares_ LOCKSTEP_GUARDED_BY(mutex_);
  // Requests that were submitted and have not ended; true: cancelled.
  std::unordered_map<RequestId, bool> open_ LOCKSTEP_GUARDED_BY(mutex_);
  // Places and waiting prompts as shares_ has them. Written with mutex_ held.
  std::atomic<size_t> places_taken_ = 0;
  std::atomic<size_t> waiting_tokens_ = 0;
  bool draining_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::optional<Error> failure_ LOCKSTEP_GUARDED_BY(mutex_);  // never changes once it is there
  std::atomic<bool> has_failed_ = false;                      // no request is taken; after failure_
  std::atomic<RequestId> next_id_ = 1;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace lockstep
