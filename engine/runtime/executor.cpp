#include "engine/runtime/executor.h"

#include "engine/base/check.h"
#include "engine/machine/tick_clock.h"
#include "engine/runtime/step_runner.h"

namespace lockstep {

Executor::Executor(Ranks& ranks, const KernelTable& kernels) : ranks_(ranks), kernels_(kernels) {
  for (size_t rank = 0; rank < ranks.count(); ++rank) {
    jobs_.emplace_back([this, rank](size_t worker) { walk(ranks_[rank], worker); });
  }
}

void Executor::run(const Batch& batch) {
  const Plan& plan = ranks_.root_plan();
  CHECK(batch.tokens.size() <= plan.batch_tokens, "{} tokens in a batch of at most {}",
        batch.tokens.size(), plan.batch_tokens);
  CHECK(batch.logit_tokens.size() <= plan.logit_rows, "{} rows of logits of at most {}",
        batch.logit_tokens.size(), plan.logit_rows);
  batch_ = &batch;
  for (size_t rank = 0; rank < ranks_.count(); ++rank) ranks_[rank].workers().begin(jobs_[rank]);
  for (size_t rank = 0; rank < ranks_.count(); ++rank) ranks_[rank].workers().finish();
}

void Executor::walk(Rank& rank, size_t worker) const {
  const Plan& plan = rank.plan();
  Barrier& barrier = rank.workers().barrier();
  WorkerCounters& counters = rank.counters(worker);
  const Pass pass{plan, kernels_, *batch_, barrier, counters, worker, rank.workers().count()};
  const bool alone = ranks_.count() == 1;
  for (const Step& step : plan.steps) {
    run_step(step.work, pass);
    const uint64_t arrived = ticks_now();
    barrier.arrive(worker);
    if (alone || step.meet == Meet::kRank) {
      barrier.wait(worker);
    } else {
      barrier.wait_for_all_ranks(worker);
    }
    counters.wait_ticks.add(ticks_now() - arrived);
  }
}

std::span<const float> Executor::logits(size_t row) const {
  const Plan& plan = ranks_.root_plan();
  return {plan.logits + row * plan.logits_stride, plan.vocabulary_size};
}

}  // namespace lockstep
