#include "engine/serving/loop_health.h"

#include <fmt/format.h>

#include <chrono>
#include <string_view>

#include "engine/base/log.h"

namespace lockstep {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::string_view phase_name(LoopPhase phase) {
  switch (phase) {
    case LoopPhase::kIdle:
      return "idle";
    case LoopPhase::kScheduling:
      return "scheduling";
    case LoopPhase::kDrafting:
      return "drafting";
    case LoopPhase::kComputing:
      return "computing";
    case LoopPhase::kSampling:
      return "sampling";
    case LoopPhase::kTask:
      return "measuring";
  }
  return "";
}

}  // namespace

void LoopActivity::enter(LoopPhase phase) {
  phase_.store(phase, kRelaxed);
  heartbeat_ns_.store(now_ns(), kRelaxed);
}

void LoopActivity::start_pass(uint64_t number, size_t sequences, size_t prompt_tokens,
                              size_t generated_tokens) {
  pass_.store(number, kRelaxed);
  sequences_.store(sequences, kRelaxed);
  prompt_tokens_.store(prompt_tokens, kRelaxed);
  generated_tokens_.store(generated_tokens, kRelaxed);
}

double LoopActivity::heartbeat_age_seconds() const {
  const int64_t heartbeat = heartbeat_ns_.load(kRelaxed);
  return heartbeat == 0 ? 0 : static_cast<double>(now_ns() - heartbeat) * 1e-9;
}

void LoopActivity::fill(EngineStatistics& statistics) const {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  statistics.heartbeat_age_seconds = heartbeat_age_seconds();
  statistics.heartbeat_timestamp_seconds = now.count() - statistics.heartbeat_age_seconds;
}

std::string LoopActivity::describe() const {
  return fmt::format(
      "{}, {:.3f} s since the last heartbeat; pass {} of {} sequences, {} prompt and {} generated "
      "tokens",
      phase_name(phase_.load(kRelaxed)), heartbeat_age_seconds(), pass_.load(kRelaxed),
      sequences_.load(kRelaxed), prompt_tokens_.load(kRelaxed), generated_tokens_.load(kRelaxed));
}

void UnusableStreak::add(RequestId submission) {
  if (submission == last_) return;
  last_ = submission;
  const uint64_t length = 1 + length_.fetch_add(1, std::memory_order_relaxed);
  if (length != kUnusableSubmissionsMax) return;
  log_surely([&] {
    spdlog::critical(
        "the output of {} submissions in a row holds no usable numbers (NaN or infinity): not "
        "ready until one ends well; check the model file and the memory, and start again",
        length);
  });
}

void UnusableStreak::note_end(std::optional<FinishReason> reason) {
  if (reason != FinishReason::kStop && reason != FinishReason::kLength) return;
  last_ = 0;
  const uint64_t length = length_.exchange(0, std::memory_order_relaxed);
  if (length < kUnusableSubmissionsMax) return;
  log_surely([&] {
    spdlog::warn("the output is usable again, after {} submissions whose was not", length);
  });
}

}  // namespace lockstep
