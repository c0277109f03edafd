#include "engine/runtime/executor.h"

#include "engine/base/check.h"
#include "engine/runtime/step_runner.h"

namespace lockstep {

Executor::Executor(Rank& rank, const KernelTable& kernels)
    : rank_(rank), kernels_(kernels), job_([this](size_t worker) { walk(worker); }) {}

void Executor::run(const Batch& batch) {
  const Plan& plan = rank_.plan();
  CHECK(batch.tokens.size() <= plan.batch_tokens, "{} tokens in a batch of at most {}",
        batch.tokens.size(), plan.batch_tokens);
  CHECK(batch.logit_tokens.size() <= plan.logit_rows, "{} rows of logits of at most {}",
        batch.logit_tokens.size(), plan.logit_rows);
  batch_ = &batch;
  rank_.workers().run(job_);
}

void Executor::walk(size_t worker) {
  const Plan& plan = rank_.plan();
  Workers& workers = rank_.workers();
  const Pass pass{plan, kernels_, *batch_, worker, workers.count()};
  for (const Step& step : plan.steps) {
    run_step(step, pass);
    workers.barrier().arrive_and_wait(worker);
  }
}

std::span<const float> Executor::logits(size_t row) const {
  const Plan& plan = rank_.plan();
  return {plan.logits + row * plan.logits_stride, plan.vocabulary_size};
}

}  // namespace lockstep
