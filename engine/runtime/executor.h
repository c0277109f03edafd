// Runs passes: every worker of the rank walks the plan's steps and meets the others after each.
#pragma once

#include <functional>
#include <span>

#include "engine/kernels/kernel_table.h"
#include "engine/runtime/batch.h"
#include "engine/runtime/rank.h"

namespace lockstep {

class Executor {
 public:
  // Both must outlive this.
  Executor(Rank& rank, const KernelTable& kernels);

  // Computes the batch: keys and values of all its tokens are in the cache afterwards, the logits
  // of its logit tokens in logits(). One caller at a time; blocks. CHECKs that the batch fits the
  // plan.
  void run(const Batch& batch);

  // Of the last batch's logit token `row`; valid until the next run().
  std::span<const float> logits(size_t row) const;

 private:
  void walk(size_t worker);

  Rank& rank_;
  const KernelTable& kernels_;
  const Batch* batch_ = nullptr;
  std::function<void(size_t)> job_;  // made once, so that a pass allocates nothing
};

}  // namespace lockstep
