// Passes of a GPU that computes by itself: one more may be enqueued while the last one runs.
#include <algorithm>

#include "engine/base/check.h"
#include "engine/runtime/gpu/gpu_executor.h"

namespace lockstep {

bool GpuExecutor::computes_alone() const {
  const bool has_others = among_processors_ || links_.peers || links_.nccl ||
                          taken_.border != nullptr || given_.border != nullptr;
  return !has_others && logits_.size_bytes() > 0 && plan_->chunk_tokens >= plan_->batch_tokens;
}

Result<void> GpuExecutor::start(const Batch& batch) {
  CHECK(is_alone_ && started_count_ == 0, "{} passes run already", started_count_);
  const StartedPass pass = {.at = std::chrono::steady_clock::now()};
  if (auto begun = begin(batch); !begun) return begun;
  if (auto enqueued = play_or_enqueue(pass.at); !enqueued) return enqueued;
  started_[started_count_++] = pass;
  return {};
}

// The staging of the pass before is being copied, and its results are yet to be read. A pass that
// is not recorded would be waited for while it is enqueued, and with it the one before.
Result<bool> GpuExecutor::start_ahead(const Batch& batch) {
  if (!starts_ahead() || plan_->given_columns > 0) return false;
  CHECK(started_count_ == 1, "{} passes run already", started_count_);
  const StartedPass pass = {.at = std::chrono::steady_clock::now(), .turn = 1 - started_[0].turn};
  const size_t bytes =
      write_batch(batch, {0, batch.tokens.size()}, {0, batch.logit_tokens.size()}, pass.turn);
  const auto recorded = recordings_.find(shape_);
  if (recorded == recordings_.end()) return false;
  if (auto used = device_->use(); !used) return std::unexpected(used.error());
  if (auto behind = stream_->record(*first_ended_); !behind) {
    return std::unexpected(behind.error());
  }
  auto copied = stream_->copy(addresses_->at(areas_->batch), staging(pass.turn), bytes);
  if (!copied) return std::unexpected(copied.error());
  if (auto launched = stream_->play(*recorded->second); !launched) {
    return std::unexpected(launched.error());
  }
  started_[started_count_++] = pass;
  return true;
}

Result<void> GpuExecutor::end() {
  CHECK(started_count_ > 0, "no pass runs");
  const bool is_followed = started_count_ > 1;
  const StartedPass pass = started_[0];
  const auto begin = std::max(pass.at, last_end_);
  const auto left = settings().pass_deadline - (std::chrono::steady_clock::now() - begin);
  auto ended = wait(std::max<std::chrono::nanoseconds>(left, kLastWait),
                    is_followed ? first_ended_.get() : nullptr);
  started_[0] = started_[1];
  started_count_ = ended ? started_count_ - 1 : 0;
  turn_ = pass.turn;
  last_end_ = std::chrono::steady_clock::now();
  return ended;
}

}  // namespace lockstep
