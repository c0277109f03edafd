#include "engine/simulation/replica.h"

#include <algorithm>
#include <utility>

#include "engine/kernels/attention.h"
#include "engine/simulation/simulation.h"

namespace lockstep {

namespace {

SchedulerLimits scheduler_limits(const ReplicaOptions& options) {
  SchedulerLimits limits;
  limits.page_tokens = kPageTokens;
  limits.page_count = options.kv_pages;
  limits.sequence_count = options.sequences;
  limits.logit_rows = options.sequences;
  limits.batch_tokens = options.batch_tokens;
  limits.targets = {options.first_token_target, options.token_target};
  return limits;
}

}  // namespace

SimulatedReplica::SimulatedReplica(const ReplicaOptions& options, const PassCosts& costs,
                                   std::span<const SimulatedRequest> requests)
    : options_(options), costs_(costs), requests_(requests), scheduler_(scheduler_limits(options)) {
  scheduler_.limit_prompt_tokens(throughput_.prompts_most());
}

double SimulatedReplica::page_use() const {
  const PrefixCache& cache = scheduler_.cache();
  const auto all = static_cast<double>(options_.kv_pages);
  return 1 - static_cast<double>(cache.available_count()) / all;
}

void SimulatedReplica::offer(size_t request, double now) {
  const SimulatedRequest& asked = requests_[request];
  const size_t most = asked.prompt_tokens + asked.answer_tokens;
  if (scheduler_.most_pages(most) > options_.kv_pages) return refuse(request);
  const QueueShares::Demand demand = {.tenant = asked.tenant, .prompt_tokens = asked.prompt_tokens};
  const QueueShares::Limits queue = {.places = options_.sequences + options_.waiting_requests,
                                     .prompt_tokens = options_.waiting_prompt_tokens};
  const auto displaced = shares_.take(request, demand, queue);
  if (!displaced) return refuse(request);
  for (const QueueShares::GroupId group : *displaced) refuse_group(group);
  arrived_.push_back(request);
  if (pass_end_ == kNever) begin_pass(now);
}

void SimulatedReplica::refuse(size_t request) {
  served_.push_back({.request = request, .refused = true});
}

// One that made way. While a pass is computed no sequence may end, so it is the pass's end that
// forgets it; none that is part of a pass makes way.
void SimulatedReplica::refuse_group(QueueShares::GroupId group) {
  refuse(group);
  if (std::erase(arrived_, group) == 0) gone_.push_back(sequences_.at(group));
}

void SimulatedReplica::begin_pass(double now) {
  for (const size_t request : std::exchange(arrived_, {})) {
    const SimulatedRequest& asked = requests_[request];
    NewSequence sequence;
    sequence.prompt.resize(asked.prompt_tokens);
    for (size_t position = 0; position < asked.prompt_tokens; ++position) {
      sequence.prompt[position] = token_at(asked, request, position);
    }
    sequence.most_tokens = asked.prompt_tokens + asked.answer_tokens;
    sequence.tenant = asked.tenant;
    const SequenceId id = scheduler_.add(std::move(sequence), now);
    open_[id] = {.request = request, .seen = {.request = request}};
    sequences_[request] = id;
  }
  pass_end_ = kNever;
  if (scheduler_.idle()) return;
  schedule_ = &scheduler_.next_batch(now);
  for (const Chunk& chunk : schedule_->chunks) {
    if (!chunk.first) continue;
    const size_t request = open_.at(chunk.sequence).request;
    shares_.start(request, requests_[request].prompt_tokens);
  }
  pass_begin_ = now;
  pass_end_ = now + pass_seconds(costs_, *schedule_);
}

void SimulatedReplica::end_pass() {
  const double now = pass_end_;
  const double seconds = now - pass_begin_;
  busy_seconds_ += seconds;
  scheduler_.computed();
  throughput_.add_pass(pass_tokens(*schedule_), seconds);
  scheduler_.limit_prompt_tokens(throughput_.prompts_most());
  for (const Chunk& chunk : schedule_->chunks) {
    if (chunk.sample) add_token(chunk.sequence, now);
  }
  scheduler_.add_pass_seconds(seconds);
  for (const SequenceId id : std::exchange(gone_, {})) {
    scheduler_.finish(id);
    sequences_.erase(open_.at(id).request);
    open_.erase(id);
  }
  begin_pass(now);
}

void SimulatedReplica::add_token(SequenceId id, double now) {
  Open& open = open_.at(id);
  const SimulatedRequest& asked = requests_[open.request];
  ServedRequest& seen = open.seen;
  if (seen.tokens == 0) {
    seen.first_token = now - asked.arrival;
  } else {
    seen.longest_gap = std::max(seen.longest_gap, now - open.last_token);
    seen.mean_gap += (now - open.last_token) / static_cast<double>(asked.answer_tokens - 1);
  }
  open.last_token = now;
  if (++seen.tokens < asked.answer_tokens) {
    const size_t position = asked.prompt_tokens + seen.tokens - 1;
    scheduler_.append_token(id, token_at(asked, open.request, position));
    return;
  }
  served_.push_back(seen);
  shares_.end(open.request, 1, asked.prompt_tokens, false);
  scheduler_.finish(id);
  sequences_.erase(open.request);
  open_.erase(id);
}

}  // namespace lockstep
