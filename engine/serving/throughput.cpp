#include "engine/serving/throughput.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/scheduler/scheduler.h"

namespace lockstep {
namespace {

constexpr double kKept = 0.9;             // of what was, with every pass or request
constexpr double kPromptPassSeconds = 4;  // below any sensible limit on a heartbeat's age
// The part of its deadline that a pass may take: what is far into a context takes longer than what
// came before it.
constexpr double kDeadlinePart = 0.25;
constexpr double kRetrySecondsMax = 60;

}  // namespace

PassTokens pass_tokens(const Schedule& schedule) {
  PassTokens tokens;
  for (const Chunk& chunk : schedule.chunks) {
    tokens.all += chunk.count - chunk.drafted;
    if (chunk.generated) continue;
    tokens.prompted += chunk.count;
    tokens.prompt_work += prompt_work(chunk.begin, chunk.count);
  }
  return tokens;
}

// One that is smaller and shorter than the last says nothing of such as that was.
void Throughput::Sample::take(double of, double in) {
  if (of < amount && in < seconds) return;
  amount = of;
  seconds = in;
}

Throughput::Throughput(std::optional<std::chrono::seconds> pass_deadline)
    : has_deadline_(pass_deadline.has_value()),
      prompt_pass_seconds_(
          pass_deadline
              ? std::min(kPromptPassSeconds,
                         kDeadlinePart * std::chrono::duration<double>(*pass_deadline).count())
              : kPromptPassSeconds) {}

void Throughput::add_pass(const PassTokens& pass, double seconds) {
  tokens_ = kKept * tokens_ + static_cast<double>(pass.all);
  seconds_ = kKept * seconds_ + seconds;
  if (has_deadline_) {
    add_prompted(pass, seconds);
  } else if (pass.all >= kPromptChunkLeast && seconds > 0) {
    prompt_tokens_ = {static_cast<double>(pass.all), seconds};
  }
  if (seconds_ > 0) tokens_per_second_.store(tokens_ / seconds_, std::memory_order_relaxed);
}

void Throughput::add_prompted(const PassTokens& pass, double seconds) {
  if (pass.prompted == 0 || seconds <= 0) return;
  prompt_tokens_.take(static_cast<double>(pass.prompted), seconds);
  prompt_work_.take(pass.prompt_work, seconds);
  if (shortest_pass_ == 0 || seconds < shortest_pass_) {
    shortest_pass_ = seconds;
  } else if (pass.prompted <= kPromptChunkLeast) {
    // The GPU has become slower, or was held up once.
    shortest_pass_ = std::min(seconds, 2 * shortest_pass_);
  }
}

void Throughput::add_request(size_t generated_tokens) {
  const double mean = generated_per_request_.load(std::memory_order_relaxed);
  const auto tokens = static_cast<double>(generated_tokens);
  const double next = mean == 0 ? tokens : kKept * mean + (1 - kKept) * tokens;
  generated_per_request_.store(next, std::memory_order_relaxed);
}

PromptAllowance Throughput::prompts_most() const {
  const double mixed = mixed_pass_seconds();
  return {.alone = tokens_within(prompt_pass_seconds_),
          .beside_streams = tokens_within(mixed),
          .work_alone = work_within(prompt_pass_seconds_),
          .work_beside_streams = work_within(mixed)};
}

double Throughput::mixed_pass_seconds() const {
  if (!has_deadline_) return kFluentSeconds;
  return std::clamp(2 * shortest_pass_, kFluentSeconds, prompt_pass_seconds_);
}

size_t Throughput::tokens_within(double seconds) const {
  const double tokens = std::min(prompt_tokens_.within(seconds), 1e9);
  return std::max(kPromptChunkLeast, static_cast<size_t>(tokens));
}

double Throughput::work_within(double seconds) const {
  if (!has_deadline_) return std::numeric_limits<double>::infinity();
  return prompt_work_.within(seconds);
}

int Throughput::seconds_until_space(size_t requests, size_t prompt_tokens) const {
  const double rate = tokens_per_second();
  if (rate <= 0) return 1;
  const double work =
      static_cast<double>(prompt_tokens) +
      static_cast<double>(requests) * generated_per_request_.load(std::memory_order_relaxed);
  return static_cast<int>(std::clamp(std::ceil(work / 2 / rate), 1.0, kRetrySecondsMax));
}

}  // namespace lockstep
