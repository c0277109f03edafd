#include "engine/serving/engine_loop.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/log.h"

namespace lockstep {
namespace {

double seconds_between(Generation::Clock::time_point start, Generation::Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

double seconds_since(Generation::Clock::time_point start) {
  return seconds_between(start, Generation::Clock::now());
}

}  // namespace

EngineLoop::EngineLoop(Executor& executor, const SchedulerLimits& limits,
                       const WaitingLimits& waiting, const Tokenizer& tokenizer,
                       size_t vocabulary_size, RowUse use, EngineCounters& counters,
                       PassHooks hooks, LoopDrafters drafters)
    : executor_(executor),
      scheduler_(limits),
      keeps_pages_(limits.page_store != nullptr && limits.page_store->outlives_process()),
      running_most_(limits.sequence_count),
      waiting_(waiting),
      tokenizer_(tokenizer),
      vocabulary_size_(vocabulary_size),
      use_(use),
      counters_(counters),
      unusable_streak_(counters.unusable_submissions),
      hooks_(std::move(hooks)),
      drafters_(drafters),
      throughput_(executor.pass_deadline()) {
  batch_.group_count = ahead_batch_.group_count = limits.windows.size();
  if (drafters_.row != nullptr && drafters_.row->repeats_answers) answers_.emplace();
  limit_prompts();
  activity_.enter(LoopPhase::kIdle);
  publish_gauges();
  thread_ = std::thread([this] { work(); });
}

EngineLoop::~EngineLoop() {
  {
    const MutexLock lock(mutex_);
    draining_ = true;
    inbox_.cancel_all = true;
    inbox_.stop = true;
  }
  wake_.notify_one();
  thread_.join();
}

void EngineLoop::limit_prompts() {
  scheduler_.limit_prompt_tokens(throughput_.prompts_most());
}

// An end is counted before the client's callback runs.
std::unique_ptr<Generation> EngineLoop::make_generation(Request request) {
  const RequestId id = next_id_.fetch_add(1, std::memory_order_relaxed);
  request.on_output = [this, submitted_at = Generation::Clock::now(),
                       forward = std::move(request.on_output)](Output&& output) {
    if (output.finish) {
      counters_.finished[static_cast<size_t>(*output.finish)].fetch_add(1,
                                                                        std::memory_order_relaxed);
      counters_.request_seconds.observe(seconds_since(submitted_at));
      counters_.request_prompt_tokens.observe(output.prompt_tokens);
      counters_.request_generated_tokens.observe(output.generated_tokens);
    }
    if (forward) forward(std::move(output));
  };
  auto made = std::make_unique<Generation>(id, std::move(request), tokenizer_, vocabulary_size_);
  const bool is_pooled = made->request().embedding || made->request().ranking;
  if (is_pooled) made->pooled.emplace(use_.pooling, made->prompt_count());
  return made;
}

EngineLoop::Inbox EngineLoop::wait_for_work() {
  constexpr std::chrono::milliseconds kHeartbeatInterval{500};
  Inbox inbox;
  const MutexLock lock(mutex_);
  while (inbox_.empty() && scheduler_.idle() && !has_pages_to_save_) {
    activity_.enter(LoopPhase::kIdle);
    wake_.wait_until(mutex_, ConditionVariable::deadline_in(kHeartbeatInterval));
  }
  inbox.submitted = std::exchange(inbox_.submitted, {});
  inbox.displaced = std::exchange(inbox_.displaced, {});
  inbox.has_cancelled = std::exchange(inbox_.has_cancelled, false);
  inbox.cancel_all = std::exchange(inbox_.cancel_all, false);
  inbox.task = inbox_.task;
  inbox.stop = inbox_.stop;
  return inbox;
}

void EngineLoop::work() {
  while (true) {
    Inbox inbox = wait_for_work();
    activity_.enter(LoopPhase::kScheduling);
    while (!has_memory_for([&] { accept(inbox); })) {  // a repetition skips what is done
    }
    if (inbox.task != nullptr) {
      has_memory_for([&] { run_task(*inbox.task); });
      end_task();
    }
    if (inbox.stop) return save_all_pages();
    has_memory_for([&] {
      if (has_failure()) return end_failed();  // what came while it failed
      end_overdue();
      step();
    });
  }
}

template <typename Part>
bool EngineLoop::has_memory_for(const Part& part) {
  try {
    part();
    return true;
  } catch (const std::bad_alloc&) {
    start_over();
    return false;
  }
}

// Resets the scheduler, which may have stopped in the middle of a change. Requests that have begun
// lose what they had computed and end; those that wait are queued again in the same order.
void EngineLoop::start_over() {
  executor_.finish_all();
  ahead_ = false;
  by_sequence_.clear();
  scheduler_.reset();
  is_scheduler_changing_ = false;
  size_t ended = 0;
  for (auto entry = generations_.begin(); entry != generations_.end();) {
    Generation& generation = *entry->second;
    ++entry;  // the request may be gone after this
    if (!generation.started && !generation.finished() && has_enqueued(generation)) continue;
    generation.finish_surely(FinishReason::kError, "no memory");
    leave(generation);
    ++ended;
  }
  log_surely([&] { spdlog::error("no memory for a pass: {} requests have ended", ended); });
}

bool EngineLoop::has_enqueued(Generation& generation) {
  try {
    enqueue(generation);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void EngineLoop::run_task(const std::function<void()>& task) {
  activity_.enter(LoopPhase::kTask);
  if (!scheduler_.idle() || has_failure()) return;
  task();
  scheduler_.forget_prefixes();  // it may have used the same pages
  publish_gauges();
  // Before the thread that waits for the task is told.
  if (executor_.failure()) fail(*executor_.failure());
}

void EngineLoop::end_task() {
  const MutexLock lock(mutex_);
  inbox_.task = nullptr;
  changed_.notify_all();
}

void EngineLoop::accept(Inbox& inbox) {
  for (auto& generation : inbox.submitted) {
    if (generation == nullptr) continue;
    try {
      add(generation);
    } catch (const std::exception& error) {
      log_surely(
          [&] { spdlog::error("request {} cannot begin: {}", generation->id(), error.what()); });
      generation->finish_surely(FinishReason::kError, "no memory");
      counters_.waiting_prompt_tokens -= generation->prompt_count();
      give_up(place_of(*generation));
      generation.reset();
    }
  }
  if (inbox.has_cancelled) end_cancelled();
  end_displaced(inbox.displaced);
  if (inbox.cancel_all) {
    while (!generations_.empty()) {
      end(*generations_.begin()->second, FinishReason::kCancelled, "");
    }
  }
  publish_gauges();
  drop_ahead_if_void();
}

Wanted EngineLoop::wanted_of(const Generation& generation) const {
  const bool is_of_last = use_.pooling == Pooling::kLast;
  if (generation.pooled && use_.output == ModelOutput::kLogits) {
    return is_of_last ? Wanted::kLastHidden : Wanted::kAllHidden;
  }
  if (generation.pooled) return is_of_last ? Wanted::kLastLogits : Wanted::kAllLogits;
  return generation.wants_prompt_logits() ? Wanted::kAllLogits : Wanted::kLastLogits;
}

void EngineLoop::add(std::unique_ptr<Generation>& generation) {
  Generation& added = *generation;
  enqueue(added);
  try {
    generations_.emplace(added.id(), std::move(generation));
  } catch (...) {  // no memory: the caller ends the request, so nothing may refer to it
    by_sequence_.erase(added.sequence);
    scheduler_.finish(added.sequence);
    throw;
  }
}

// Throws std::bad_alloc where memory is refused, and changes nothing then.
void EngineLoop::enqueue(Generation& added) {
  const Request& request = added.request();
  const auto since_start = [&](Generation::Clock::time_point time) {
    return std::chrono::duration<double>(time - start_).count();
  };
  NewSequence sequence;
  sequence.prompt = added.tokens();  // the most memory that this takes
  sequence.most_tokens = added.most_computed_tokens();
  sequence.wanted = wanted_of(added);
  sequence.tenant = request.tenant;
  sequence.scope = {request.cache_owner, request.cache_salt};
  sequence.priority = request.priority;
  if (request.deadline_seconds > 0) {
    sequence.deadline = since_start(added.submitted_at) + request.deadline_seconds;
  }
  added.sequence = scheduler_.add(std::move(sequence), since_start(added.submitted_at));
  try {
    by_sequence_.emplace(added.sequence, &added);
  } catch (...) {
    scheduler_.finish(added.sequence);
    throw;
  }
}

void EngineLoop::end_overdue() {
  for (const SequenceId sequence : scheduler_.overdue(seconds_since(start_))) {
    end(*by_sequence_.at(sequence), FinishReason::kDeadline, "");
  }
}

void EngineLoop::end_cancelled() {
  for (auto entry = generations_.begin(); entry != generations_.end();) {
    Generation& generation = *entry->second;
    ++entry;  // the request may be gone after this
    if (is_cancelled(generation.id())) end(generation, FinishReason::kCancelled, "");
  }
}

bool EngineLoop::is_cancelled(RequestId id) const {
  const MutexLock lock(mutex_);
  const auto found = open_.find(id);
  return found != open_.end() && found->second;
}

void EngineLoop::end_displaced(const std::vector<QueueShares::GroupId>& groups) {
  for (auto entry = generations_.begin(); entry != generations_.end();) {
    Generation& generation = *entry->second;
    ++entry;  // the request may be gone after this
    if (std::ranges::find(groups, generation.submission) != groups.end()) {
      end(generation, FinishReason::kDisplaced, "");
    }
  }
}

// Ends a request from outside its own course.
void EngineLoop::end(Generation& generation, FinishReason reason, const std::string& error,
                     bool usable) {
  generation.finish_surely(reason, error);
  retire(generation, usable);
}

void EngineLoop::step() {
  drop_ahead_if_void();
  if (has_failure()) return;
  save_pages();
  const auto begin = Generation::Clock::now();
  if (auto drafted = propose_drafts(); !drafted) return fail(std::move(drafted.error()));
  const Schedule& schedule = scheduler_.next_batch(seconds_since(start_));
  if (schedule.chunks.empty()) return wait_for_store();
  const bool has_begun = take_ahead(schedule);
  const uint64_t number = counters_.steps.load(std::memory_order_relaxed) + 1;
  activity_.start_pass(number, schedule.chunks.size(),
                       batch_.tokens.size() - batch_.generated_tokens, batch_.generated_tokens);
  activity_.enter(LoopPhase::kComputing);
  // A pass that has begun ahead runs from the end of the one before.
  const auto start = has_begun ? last_finish_ : Generation::Clock::now();
  if (auto computed = compute(schedule, has_begun); !computed) {
    scheduler_.computed();  // it knows of no pass that has begun and not ended
    return fail(std::move(computed.error()));
  }
  last_finish_ = Generation::Clock::now();
  const double seconds = seconds_between(start, last_finish_);
  activity_.enter(LoopPhase::kSampling);
  throughput_.add_pass(pass_tokens(schedule), seconds);
  limit_prompts();
  counters_.step_seconds.observe(seconds);
  counters_.step_tokens.observe(static_cast<double>(batch_.tokens.size()));
  counters_.step_sequences.observe(static_cast<double>(schedule.chunks.size()));
  counters_.steps.store(number, std::memory_order_relaxed);
  scheduler_.computed();
  publish_counters();
  postprocess(schedule);
  if (auto followed = follow_pass(schedule); !followed) return fail(std::move(followed.error()));
  has_pages_to_save_ = keeps_pages_;  // perhaps: the next turn looks
  if (executor_.failure()) return fail(*executor_.failure());
  const auto end = ahead_ ? last_finish_ : Generation::Clock::now();
  scheduler_.add_pass_seconds(seconds_between(has_begun ? start : begin, end) - stage_seconds_);
  publish_gauges();
  drop_ahead_if_void();
}

// Before pages are handed out for the next pass; while there is nothing else to do, all of them
// where they outlive the process.
void EngineLoop::save_pages() {
  constexpr std::chrono::milliseconds kMost{5};  // that a pass is held up
  const bool all = keeps_pages_ && scheduler_.idle();
  const auto until = Generation::Clock::now() + kMost;
  auto saved = SequencePages::Saved::kOne;
  while (saved == SequencePages::Saved::kOne && Generation::Clock::now() < until) {
    saved = scheduler_.save_page(all);
  }
  has_pages_to_save_ = all && saved != SequencePages::Saved::kNothing;
}

// At the end, for so long at most as a service manager bears with.
void EngineLoop::save_all_pages() {
  constexpr std::chrono::seconds kMost{10};
  constexpr std::chrono::milliseconds kPause{1};
  if (!keeps_pages_ || has_failure()) return;
  const auto until = Generation::Clock::now() + kMost;
  has_memory_for([&] {
    while (Generation::Clock::now() < until) {
      const auto saved = scheduler_.save_page(/*all=*/true);
      if (saved == SequencePages::Saved::kNothing) return;
      activity_.enter(LoopPhase::kScheduling);
      if (saved == SequencePages::Saved::kNoSpace) std::this_thread::sleep_for(kPause);
    }
  });
}

// Nothing can be computed, or saved, until the store has read or written something.
void EngineLoop::wait_for_store() {
  constexpr std::chrono::milliseconds kPause{1};
  if (scheduler_.idle() && !has_pages_to_save_) return;
  const MutexLock lock(mutex_);
  if (inbox_.empty()) wake_.wait_until(mutex_, ConditionVariable::deadline_in(kPause));
}

// Everything else is refused before a client's callback tells it that its request has failed.
void EngineLoop::fail(Error error) {
  log_surely(
      [&] { spdlog::critical("a pass has failed, and the engine with it: {}", error.message); });
  ahead_ = false;  // nothing more is asked of the executor
  const Error* kept = nullptr;
  {
    const MutexLock lock(mutex_);
    kept = &failure_.emplace(std::move(error));
  }
  // A request that comes between the two is ended below: health has to say it first.
  if (hooks_.on_failure) hooks_.on_failure(*kept);
  has_failed_ = true;
  end_failed();
}

void EngineLoop::end_failed() {
  const std::string message = "the engine has failed: " + failure()->message;
  while (!generations_.empty()) {
    end(*generations_.begin()->second, FinishReason::kError, message, /*usable=*/false);
  }
  activity_.enter(LoopPhase::kIdle);
}

bool EngineLoop::has_failure() const {
  const MutexLock lock(mutex_);
  return failure_.has_value();
}

std::optional<Error> EngineLoop::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

void EngineLoop::fill_batch(const Schedule& schedule) {
  batch_.clear();
  batch_.cleared_pages = schedule.cleared_pages;
  if (drafters_.stage != nullptr) drafters_.stage->clear_pages(schedule.cleared_pages);
  for (const SlotCopy& copy : schedule.state_copies) {
    batch_.state_copies.push_back({copy.from, copy.to});
  }
  const bool draws = executor_.draws_tokens();
  for (const Chunk& chunk : schedule.chunks) {
    Generation& generation = *by_sequence_.at(chunk.sequence);
    const auto slot = static_cast<uint32_t>(batch_.sequence_count());
    for (const PageTable& table : scheduler_.tables(chunk.sequence)) {
      batch_.page_tables.emplace_back(table.pages);
    }
    if (const auto state = scheduler_.state(chunk.sequence)) batch_.state_slots.push_back(*state);
    for (const auto& [state_slot, tokens] : scheduler_.new_checkpoints(chunk.sequence)) {
      const size_t last = batch_.tokens.size() + tokens - 1 - chunk.begin;
      batch_.checkpoints.push_back({.token = static_cast<uint32_t>(last), .slot = state_slot});
    }
    generation.cached_tokens = scheduler_.cached_tokens(chunk.sequence);
    if (chunk.first) {
      generation.started = true;
      counters_.waiting_prompt_tokens.fetch_sub(generation.prompt_count(),
                                                std::memory_order_relaxed);
      {
        const MutexLock lock(mutex_);
        shares_.start(generation.submission, generation.queued_tokens());
        note_shares();
      }
      generation.queue_seconds = seconds_since(generation.submitted_at);
      counters_.queue_seconds.observe(*generation.queue_seconds);
    }
    const std::vector<TokenId>& known = generation.tokens();
    const std::span<const TokenId> drafted = scheduler_.drafts(chunk.sequence);
    for (size_t index = chunk.begin; index < chunk.begin + chunk.count; ++index) {
      if (wants_logits(generation, chunk, index)) {
        batch_.logit_tokens.push_back(static_cast<uint32_t>(batch_.tokens.size()));
        const bool sampled = chunk.sample && index + 1 >= known.size();
        if (draws) {
          batch_.draws.push_back(sampled ? generation.draw_request(index + 1 - known.size())
                                         : LogitDrawRequest());
        }
      }
      const bool is_known = index < known.size();
      batch_.tokens.push_back({.token = is_known ? known[index] : drafted[index - known.size()],
                               .position = static_cast<uint32_t>(index),
                               .sequence = slot,
                               .segment = index < generation.request().second_text ? 0U : 1U});
    }
    if (chunk.generated) batch_.generated_tokens = batch_.tokens.size();
  }
}

// Tokens and the logits' rows stand in the order in which fill_batch() asked for them. What one
// request throws (no memory for its text, say) ends that request; the others go on.
void EngineLoop::postprocess(const Schedule& schedule) {
  size_t token = 0;
  size_t row = 0;
  for (const Chunk& chunk : schedule.chunks) {
    if (executor_.failure()) return;  // nothing more can be read
    if (chunk.ended) {                // of a pass that began ahead
      token += chunk.count;
      row += chunk.count;
      continue;
    }
    Generation& generation = *by_sequence_.at(chunk.sequence);
    const size_t first_token = token;
    const size_t first_row = row;
    token += chunk.count;
    for (size_t index = chunk.begin; index < chunk.begin + chunk.count; ++index) {
      row += wants_logits(generation, chunk, index) ? 1 : 0;
    }
    try {
      if (generation.pooled && use_.output != ModelOutput::kLogits) {
        use_states(generation, chunk, first_row);
      } else if (generation.pooled) {
        use_hidden_rows(generation, chunk, first_token);
      } else {
        use_logits(generation, chunk, first_row);
      }
    } catch (const std::exception& error) {
      if (is_scheduler_changing_) throw;
      log_surely([&] {
        spdlog::error("request {} ended by an internal error: {}", generation.id(), error.what());
      });
      end(generation, FinishReason::kError, "internal error");
    }
  }
}

// Each row that is sampled from is the next token's: of the known tokens' last one, and of drafted
// ones as long as they are what has been sampled.
void EngineLoop::use_logits(Generation& generation, const Chunk& chunk, size_t row) {
  const size_t end = chunk.begin + chunk.count;
  const size_t known = end - chunk.drafted;
  // Kept: the scheduler forgets them while they are verified.
  const std::span<const TokenId> drafted = scheduler_.drafts(chunk.sequence);
  drafts_.assign(drafted.begin(), drafted.end());
  count_draft(generation, chunk);
  for (size_t index = chunk.logits_begin; index < end; ++index) {
    const size_t own_row = row++;
    LogitRow logits = executor_.logits(own_row);
    if (!logits.is_finite()) return discard(generation);
    if (generation.wants_prompt_logits()) {
      const auto all = logits.all();
      if (!all) return;  // the executor has failed
      generation.add_prompt_logits(index, *all);
    }
    if (!chunk.sample || index + 1 < known) continue;
    const size_t place = index + 1 - known;
    // The generation may be gone after this.
    if (!advance(generation, own_row, logits, place)) return;
  }
}

// Nothing that it has computed is of use.
void EngineLoop::discard(Generation& generation) {
  log_surely([&] {
    spdlog::error("request {}: what the model makes of {} tokens is not finite", generation.id(),
                  generation.tokens().size());
  });
  unusable_streak_.add(generation.submission);
  end(generation, FinishReason::kError,
      "the model's output holds no usable numbers (NaN or infinity)", /*usable=*/false);
}

// A token is counted before the client's callback runs. True: it is the one at `place` of the draft
// in drafts_, so the pass has the row behind it, and the request goes on.
bool EngineLoop::advance(Generation& generation, size_t row, LogitRow& logits, size_t place) {
  const auto ended = generation.advance(logits, [&] {
    counters_.generated_tokens.fetch_add(1, std::memory_order_relaxed);
    if (place < drafts_.size() && generation.tokens().back() == drafts_[place]) {
      ++generation.accepted_tokens;
      counters_of(generation).accepted_tokens[place].fetch_add(1, std::memory_order_relaxed);
    }
    if (generation.last_token_at) {
      counters_.inter_token_seconds.observe(seconds_since(*generation.last_token_at));
    } else {
      counters_.time_to_first_token_seconds.observe(seconds_since(generation.submitted_at));
    }
    generation.last_token_at = Generation::Clock::now();
  });
  if (!ended) return false;  // the executor has failed
  if (*ended) {
    unusable_streak_.note_end(generation.finished());
    retire(generation);
    return false;
  }
  check_pick(row, generation.tokens().back());
  is_scheduler_changing_ = true;
  const bool goes_on = scheduler_.append_token(generation.sequence, generation.tokens().back());
  is_scheduler_changing_ = false;
  return goes_on;
}

void EngineLoop::retire(Generation& generation, bool usable) {
  if (usable) remember(generation);
  is_scheduler_changing_ = true;
  if (usable) {
    scheduler_.finish(generation.sequence);
  } else {
    scheduler_.discard(generation.sequence);
  }
  is_scheduler_changing_ = false;
  if (drafters_.stage != nullptr) drafters_.stage->forget(generation.sequence);
  by_sequence_.erase(generation.sequence);
  leave(generation);
}

void EngineLoop::publish_counters() {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const SchedulerCounters& counted = scheduler_.counters();
  counters_.prompt_tokens.store(counted.prompt_tokens, kRelaxed);
  counters_.prefix_query_tokens.store(counted.prefix_query_tokens, kRelaxed);
  counters_.prefix_hit_tokens.store(counted.prefix_hit_tokens, kRelaxed);
  counters_.preemptions.store(counted.preemptions, kRelaxed);
  counters_.state_hits.store(counted.state_hits, kRelaxed);
  counters_.stored_tokens.store(counted.stored_tokens, kRelaxed);
  counters_.stored_seconds.store(counted.stored_seconds, kRelaxed);
  counters_.kv_evictions.store(scheduler_.cache().eviction_count(), kRelaxed);
  counters_.state_evictions.store(scheduler_.slots().eviction_count(), kRelaxed);
}

void EngineLoop::publish_gauges() {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const PrefixCache& cache = scheduler_.cache();
  counters_.requests_running.store(scheduler_.running_count(), kRelaxed);
  counters_.requests_waiting.store(scheduler_.waiting_count(), kRelaxed);
  counters_.kv_pages.store(cache.pool().page_count(), kRelaxed);
  counters_.kv_pages_free.store(cache.pool().free_count(), kRelaxed);
  counters_.kv_pages_cached.store(cache.idle_count(), kRelaxed);
  const StateSlots& slots = cache.slots();
  counters_.state_slots.store(slots.pool().page_count(), kRelaxed);
  counters_.state_slots_free.store(slots.pool().free_count(), kRelaxed);
  counters_.state_checkpoints.store(slots.checkpoint_count(), kRelaxed);
}

}  // namespace lockstep
