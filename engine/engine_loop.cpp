#include "engine/engine_loop.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/log.h"

namespace lockstep {
namespace {

double seconds_since(Generation::Clock::time_point start) {
  return std::chrono::duration<double>(Generation::Clock::now() - start).count();
}

bool samples_at(const Chunk& chunk, size_t index) {
  return chunk.sample && index + 1 == chunk.begin + chunk.count;
}

bool wants_logits(const Generation& generation, const Chunk& chunk, size_t index) {
  return samples_at(chunk, index) ||
         (generation.wants_prompt_logits() && index < generation.prompt_count());
}

}  // namespace

EngineLoop::EngineLoop(Executor& executor, const SchedulerLimits& limits, size_t waiting_most,
                       const Tokenizer& tokenizer, size_t vocabulary_size, EngineCounters& counters)
    : executor_(executor),
      scheduler_(limits),
      open_most_(limits.sequence_count + waiting_most),
      tokenizer_(tokenizer),
      vocabulary_size_(vocabulary_size),
      counters_(counters) {
  publish_gauges();
  thread_ = std::thread([this] { work(); });
}

EngineLoop::~EngineLoop() {
  {
    const std::lock_guard lock(mutex_);
    draining_ = true;
    inbox_.cancel_all = true;
    inbox_.stop = true;
  }
  wake_.notify_one();
  thread_.join();
}

Result<RequestId> EngineLoop::submit(Request request) {
  const RequestId id = next_id_.fetch_add(1, std::memory_order_relaxed);
  // Whoever hears of an end finds it counted.
  request.on_output = [this, forward = std::move(request.on_output)](Output&& output) {
    if (output.finish) {
      counters_.finished[static_cast<size_t>(*output.finish)].fetch_add(1,
                                                                        std::memory_order_relaxed);
    }
    if (forward) forward(std::move(output));
  };
  // Made outside the lock: it copies and counts the prompt.
  auto generation =
      std::make_unique<Generation>(id, std::move(request), tokenizer_, vocabulary_size_);
  {
    const std::lock_guard lock(mutex_);
    if (draining_) return unavailable("shutting down: no more requests are taken");
    if (open_count_ >= open_most_) {
      return unavailable("{} requests are running and waiting, no more are taken; try again later",
                         open_count_);
    }
    inbox_.submitted.push_back(std::move(generation));
    ++open_count_;
  }
  wake_.notify_one();
  return id;
}

void EngineLoop::cancel(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    inbox_.cancelled.push_back(id);
  }
  wake_.notify_one();
}

void EngineLoop::drain(double seconds) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  const auto ended = [&] { return open_count_ == 0; };
  if (changed_.wait_for(lock, std::chrono::duration<double>(seconds), ended)) return;
  inbox_.cancel_all = true;
  wake_.notify_one();
  changed_.wait(lock, ended);
}

void EngineLoop::run_if_idle(const std::function<void()>& task) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return inbox_.task == nullptr; });
  inbox_.task = &task;
  wake_.notify_one();
  changed_.wait(lock, [&] { return inbox_.task != &task; });
}

void EngineLoop::work() {
  while (true) {
    Inbox inbox;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return !inbox_.empty() || !scheduler_.idle(); });
      inbox.submitted = std::exchange(inbox_.submitted, {});
      inbox.cancelled = std::exchange(inbox_.cancelled, {});
      inbox.cancel_all = std::exchange(inbox_.cancel_all, false);
      inbox.task = inbox_.task;
      inbox.stop = inbox_.stop;
    }
    accept(inbox);
    if (inbox.task != nullptr) {
      if (scheduler_.idle()) (*inbox.task)();
      const std::lock_guard lock(mutex_);
      inbox_.task = nullptr;
      changed_.notify_all();
    }
    if (inbox.stop) return;
    step();
  }
}

void EngineLoop::accept(Inbox& inbox) {
  for (auto& generation : inbox.submitted) {
    Generation& added = *generation;
    added.sequence = scheduler_.add(added.prompt_count(), added.most_computed_tokens(),
                                    added.wants_prompt_logits());
    by_sequence_.emplace(added.sequence, &added);
    generations_.emplace(added.id(), std::move(generation));
  }
  for (const RequestId id : inbox.cancelled) cancel_now(id);
  if (inbox.cancel_all) {
    while (!generations_.empty()) cancel_now(generations_.begin()->first);
  }
  publish_gauges();
}

void EngineLoop::cancel_now(RequestId id) {
  const auto found = generations_.find(id);
  if (found == generations_.end()) return;
  end(*found->second, FinishReason::kCancelled, "");
}

// Ends a request from outside its own course. Whoever hears of it may throw; it has ended all the
// same.
void EngineLoop::end(Generation& generation, FinishReason reason, const std::string& error) {
  try {
    generation.finish(reason, error);
  } catch (const std::exception& thrown) {
    spdlog::error("request {} could not be told of its end: {}", generation.id(), thrown.what());
  }
  retire(generation);
}

void EngineLoop::step() {
  const Schedule& schedule = scheduler_.next_batch();
  if (schedule.chunks.empty()) return;
  fill_batch(schedule);
  const auto start = Generation::Clock::now();
  executor_.run(batch_);
  counters_.step_seconds.observe(seconds_since(start));
  counters_.step_tokens.observe(static_cast<double>(batch_.tokens.size()));
  counters_.step_sequences.observe(static_cast<double>(schedule.chunks.size()));
  counters_.steps.fetch_add(1, std::memory_order_relaxed);
  scheduler_.computed();
  postprocess(schedule);
  publish_gauges();
}

void EngineLoop::fill_batch(const Schedule& schedule) {
  batch_.clear();
  batch_.cleared_pages = schedule.cleared_pages;
  for (const Chunk& chunk : schedule.chunks) {
    const Generation& generation = *by_sequence_.at(chunk.sequence);
    const auto slot = static_cast<uint32_t>(batch_.page_tables.size());
    batch_.page_tables.push_back(scheduler_.pages(chunk.sequence));
    if (chunk.first) {
      counters_.queue_seconds.observe(seconds_since(generation.submitted_at));
    }
    const size_t prompt_left =
        generation.prompt_count() - std::min(generation.prompt_count(), chunk.begin);
    counters_.prompt_tokens.fetch_add(std::min(prompt_left, chunk.count),
                                      std::memory_order_relaxed);
    for (size_t index = chunk.begin; index < chunk.begin + chunk.count; ++index) {
      if (wants_logits(generation, chunk, index)) {
        batch_.logit_tokens.push_back(static_cast<uint32_t>(batch_.tokens.size()));
      }
      batch_.tokens.push_back({.token = generation.tokens()[index],
                               .position = static_cast<uint32_t>(index),
                               .sequence = slot});
    }
    if (prompt_left == 0) batch_.generated_tokens = batch_.tokens.size();
  }
}

// The logits' rows stand in the order in which fill_batch() asked for them. What one request throws
// (no memory for its text, say) ends that request; the others go on.
void EngineLoop::postprocess(const Schedule& schedule) {
  size_t row = 0;
  for (const Chunk& chunk : schedule.chunks) {
    Generation& generation = *by_sequence_.at(chunk.sequence);
    const size_t first_row = row;
    for (size_t index = chunk.begin; index < chunk.begin + chunk.count; ++index) {
      row += wants_logits(generation, chunk, index) ? 1 : 0;
    }
    try {
      use_logits(generation, chunk, first_row);
    } catch (const std::exception& error) {
      spdlog::error("request {} ended by an internal error: {}", generation.id(), error.what());
      end(generation, FinishReason::kError, "internal error");
    }
  }
}

void EngineLoop::use_logits(Generation& generation, const Chunk& chunk, size_t row) {
  for (size_t index = chunk.begin; index < chunk.begin + chunk.count; ++index) {
    if (!wants_logits(generation, chunk, index)) continue;
    const std::span<const float> logits = executor_.logits(row++);
    if (generation.wants_prompt_logits()) generation.add_prompt_logits(index, logits);
    // The chunk's last token: the generation may be gone after this.
    if (samples_at(chunk, index)) advance(generation, logits);
  }
}

void EngineLoop::advance(Generation& generation, std::span<const float> logits) {
  const size_t before = generation.generated_count();
  const bool ended = generation.advance(logits);
  if (generation.generated_count() > before) {
    counters_.generated_tokens.fetch_add(1, std::memory_order_relaxed);
    if (generation.last_token_at) {
      counters_.inter_token_seconds.observe(seconds_since(*generation.last_token_at));
    } else {
      counters_.time_to_first_token_seconds.observe(seconds_since(generation.submitted_at));
    }
    generation.last_token_at = Generation::Clock::now();
  }
  if (ended) {
    retire(generation);
  } else {
    scheduler_.append_token(generation.sequence);
  }
}

void EngineLoop::retire(Generation& generation) {
  scheduler_.finish(generation.sequence);
  by_sequence_.erase(generation.sequence);
  generations_.erase(generation.id());
  publish_gauges();
  const std::lock_guard lock(mutex_);
  --open_count_;
  changed_.notify_all();
}

void EngineLoop::publish_gauges() {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  counters_.requests_running.store(scheduler_.running_count(), kRelaxed);
  counters_.requests_waiting.store(scheduler_.waiting_count(), kRelaxed);
  counters_.kv_pages.store(scheduler_.pool().page_count(), kRelaxed);
  counters_.kv_pages_free.store(scheduler_.pool().free_count(), kRelaxed);
}

}  // namespace lockstep
