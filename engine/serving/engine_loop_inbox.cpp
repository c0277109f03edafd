// The engine's loop as other threads call it: what they ask for, and what is refused at once.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <utility>

#include "engine/base/log.h"
#include "engine/serving/engine_loop.h"

namespace lockstep {

// Texts that are embedded together are as one request: the last one has its place. What they cost
// is seen in their tokens.
Result<std::vector<RequestId>> EngineLoop::submit(std::vector<Request> requests) {
  // Made outside the lock: it copies and counts the prompts.
  std::vector<std::unique_ptr<Generation>> generations;
  std::vector<RequestId> ids;
  std::unordered_map<RequestId, bool> opened;
  QueueShares::Demand demand;
  demand.requests = requests.size();
  demand.places = 0;
  demand.prompt_tokens = 0;
  size_t prompt_tokens = 0;
  if (!requests.empty()) demand.tenant = requests.front().tenant;
  for (Request& request : requests) {
    generations.push_back(make_generation(std::move(request)));
    Generation& made = *generations.back();
    prompt_tokens += made.prompt_count();
    demand.prompt_tokens += made.queued_tokens();
    const bool shares_place = made.pooled && generations.size() < requests.size();
    made.places = shares_place ? 0 : 1;
    demand.places += made.places;
    ids.push_back(made.id());
    opened.emplace(made.id(), false);
    made.submission = ids.front();
  }
  if (ids.empty()) return ids;
  {
    const MutexLock lock(mutex_);
    if (draining_) {
      return full(Rejection::kDraining, "shutting down: no more requests are taken");
    }
    if (has_failed_.load(std::memory_order_relaxed)) {
      return full(Rejection::kFailed, "the engine has failed: no more requests are taken");
    }
    // Nothing may throw once the places are taken.
    inbox_.submitted.reserve(inbox_.submitted.size() + generations.size());
    inbox_.displaced.reserve(inbox_.displaced.size() + shares_.group_count());
    open_.reserve(open_.size() + opened.size());
    const auto displaced = shares_.take(ids.front(), demand, queue_limits());
    if (!displaced) return queue_full(displaced.error(), demand);
    std::ranges::copy(*displaced, std::back_inserter(inbox_.displaced));
    std::ranges::move(generations, std::back_inserter(inbox_.submitted));
    open_.merge(opened);
    counters_.waiting_prompt_tokens.fetch_add(prompt_tokens, std::memory_order_relaxed);
    note_shares();
  }
  wake_.notify_one();
  return ids;
}

Result<void> EngineLoop::check_queue(const std::string& tenant) const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  if (has_failed_.load(kRelaxed)) {
    return full(Rejection::kFailed, "the engine has failed: no more requests are taken");
  }
  const QueueShares::Limits limits = queue_limits();
  const size_t waiting = waiting_tokens_.load(kRelaxed);
  if (places_taken_.load(kRelaxed) < limits.places &&
      (waiting == 0 || waiting < limits.prompt_tokens)) {
    return {};
  }
  const QueueShares::Demand demand{.tenant = tenant};
  const MutexLock lock(mutex_);
  if (const auto space = shares_.check(demand, limits); !space) {
    return queue_full(space.error(), demand);
  }
  return {};
}

QueueShares::Limits EngineLoop::queue_limits() const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  return {.places = running_most_ + waiting_.requests.load(kRelaxed),
          .prompt_tokens = waiting_.prompt_tokens.load(kRelaxed)};
}

void EngineLoop::note_shares() {
  places_taken_.store(shares_.places(), std::memory_order_relaxed);
  waiting_tokens_.store(shares_.prompt_tokens(), std::memory_order_relaxed);
}

std::unexpected<Error> EngineLoop::queue_full(QueueShares::Shortage shortage,
                                              const QueueShares::Demand& demand) const {
  const QueueShares::Limits limits = queue_limits();
  const int retry_after_seconds = throughput_.seconds_until_space(
      open_.size(), counters_.waiting_prompt_tokens.load(std::memory_order_relaxed));
  if (shortage == QueueShares::Shortage::kPlaces) {
    return full(Rejection::kQueueRequests,
                fmt::format("{} requests are running and waiting, {} at most; {} more are not "
                            "taken; try again later",
                            shares_.places(), limits.places, demand.places),
                retry_after_seconds);
  }
  return full(Rejection::kQueueTokens,
              fmt::format("prompts of {} tokens are waiting, {} at most; {} more are not taken; "
                          "try again later",
                          shares_.prompt_tokens(), limits.prompt_tokens, demand.prompt_tokens),
              retry_after_seconds);
}

std::unexpected<Error> EngineLoop::full(Rejection reason, std::string message,
                                        std::optional<int> retry_after_seconds) const {
  counters_.rejected[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  return std::unexpected(Error{ErrorKind::kUnavailable, std::move(message), retry_after_seconds});
}

void EngineLoop::cancel(RequestId id) noexcept {
  {
    const MutexLock lock(mutex_);
    const auto found = open_.find(id);
    if (found == open_.end()) return;
    found->second = true;
    inbox_.has_cancelled = true;
  }
  wake_.notify_one();
}

void EngineLoop::drain(double seconds) {
  const auto deadline = ConditionVariable::deadline_in(std::chrono::duration<double>(seconds));
  const MutexLock lock(mutex_);
  draining_ = true;
  while (!open_.empty() && changed_.wait_until(mutex_, deadline)) {
  }
  if (open_.empty()) return;
  inbox_.cancel_all = true;
  wake_.notify_one();
  while (!open_.empty()) changed_.wait(mutex_);
}

void EngineLoop::run_if_idle(const std::function<void()>& task) {
  const MutexLock lock(mutex_);
  while (inbox_.task != nullptr) changed_.wait(mutex_);
  inbox_.task = &task;
  wake_.notify_one();
  while (inbox_.task == &task) changed_.wait(mutex_);
}

// Removes a request that the scheduler no longer holds. Takes no memory.
void EngineLoop::leave(Generation& generation) {
  if (!generation.started) {
    counters_.waiting_prompt_tokens.fetch_sub(generation.prompt_count(), std::memory_order_relaxed);
  }
  if (!generation.pooled) throughput_.add_request(generation.generated_count());
  const Place place = place_of(generation);
  generations_.erase(generation.id());
  publish_gauges();
  give_up(place);
}

EngineLoop::Place EngineLoop::place_of(const Generation& generation) {
  return {generation.id(), generation.submission, generation.places, generation.queued_tokens(),
          !generation.started};
}

void EngineLoop::give_up(const Place& place) {
  const MutexLock lock(mutex_);
  open_.erase(place.id);
  shares_.end(place.group, place.count, place.prompt_tokens, place.waits);
  note_shares();
  changed_.notify_all();
}

}  // namespace lockstep
