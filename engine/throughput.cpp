#include "engine/throughput.h"

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

constexpr double kKept = 0.9;  // of what was, with every pass or request
// A pass of fewer tokens says little of how fast prompts are, and a prompt in smaller chunks would
// read the weights too often.
constexpr size_t kPromptTokensLeast = 32;
constexpr double kPromptPassSeconds = 4;  // below any sensible limit on a heartbeat's age
// Of a pass's deadline: what is far into a context takes longer than what came before it.
constexpr double kDeadlinePart = 0.25;
constexpr double kMixedPassSeconds = 0.1;  // a text is still read as fluent
constexpr double kRetrySecondsMax = 60;

}  // namespace

Throughput::Throughput(std::optional<std::chrono::seconds> pass_deadline)
    : prompt_pass_seconds_(
          pass_deadline
              ? std::min(kPromptPassSeconds,
                         kDeadlinePart * std::chrono::duration<double>(*pass_deadline).count())
              : kPromptPassSeconds) {}

void Throughput::add_pass(size_t tokens, double seconds) {
  tokens_ = kKept * tokens_ + static_cast<double>(tokens);
  seconds_ = kKept * seconds_ + seconds;
  if (tokens >= kPromptTokensLeast && seconds > 0) {
    prompt_tokens_per_second_ = static_cast<double>(tokens) / seconds;
  }
  if (seconds_ > 0) tokens_per_second_.store(tokens_ / seconds_, std::memory_order_relaxed);
}

void Throughput::add_request(size_t generated_tokens) {
  const double mean = generated_per_request_.load(std::memory_order_relaxed);
  const auto tokens = static_cast<double>(generated_tokens);
  const double next = mean == 0 ? tokens : kKept * mean + (1 - kKept) * tokens;
  generated_per_request_.store(next, std::memory_order_relaxed);
}

size_t Throughput::prompt_tokens_most() const {
  return prompt_tokens_within(prompt_pass_seconds_);
}

size_t Throughput::prompt_tokens_beside_streams() const {
  return prompt_tokens_within(kMixedPassSeconds);
}

size_t Throughput::prompt_tokens_within(double seconds) const {
  const double tokens = std::min(prompt_tokens_per_second_ * seconds, 1e9);
  return std::max(kPromptTokensLeast, static_cast<size_t>(tokens));
}

int Throughput::seconds_until_room(size_t requests, size_t prompt_tokens) const {
  const double rate = tokens_per_second();
  if (rate <= 0) return 1;
  const double work =
      static_cast<double>(prompt_tokens) +
      static_cast<double>(requests) * generated_per_request_.load(std::memory_order_relaxed);
  return static_cast<int>(std::clamp(std::ceil(work / 2 / rate), 1.0, kRetrySecondsMax));
}

}  // namespace lockstep
