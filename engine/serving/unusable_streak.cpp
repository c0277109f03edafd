#include "engine/serving/unusable_streak.h"

#include "engine/base/log.h"
#include "engine/base/log_surely.h"

namespace lockstep {

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
