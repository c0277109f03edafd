#include "engine/runtime/executor.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/machine/tick_clock.h"
#include "engine/runtime/form_writer.h"
#include "engine/runtime/step_runner.h"

namespace lockstep {

namespace {

// Every rank on processors has room for as many, or for none, having no heads. A GPU's attention
// is cut in another way.
size_t attention_blocks(Ranks& ranks) {
  size_t blocks = 0;
  for (size_t rank = 0; rank < ranks.count(); ++rank) {
    if (ranks[rank].gpu() != nullptr) continue;
    blocks = std::max(blocks, ranks[rank].plan().attention_blocks);
  }
  return blocks;
}

// What the ranks on processors want together.
PromptBlocks prompt_blocks(Ranks& ranks) {
  // With as many blocks, each for every KV head, the workers end within a third of a block's time.
  constexpr size_t kBlocksPerWorker = 3;
  PromptBlocks blocks;
  for (size_t rank = 0; rank < ranks.count(); ++rank) {
    if (ranks[rank].gpu() != nullptr) continue;
    for (const Step& step : ranks[rank].plan().steps) {
      const auto* attend = std::get_if<AttendStep>(&step.work);
      if (attend == nullptr || attend->prompt_attention != AttentionForm::kBf16) continue;
      const size_t heads = std::max<size_t>(1, attend->kv_head_count);
      const size_t tasks = kBlocksPerWorker * ranks[rank].workers().count();
      const size_t most = kBf16AttentionRows / attend->group;
      blocks.tokens_most = blocks.tokens_most == 0 ? most : std::min(blocks.tokens_most, most);
      blocks.wanted = std::max(blocks.wanted, (tasks + heads - 1) / heads);
    }
  }
  return blocks;
}

void check_order(std::span<const BatchToken> tokens) {
  for (size_t index = 1; index < tokens.size(); ++index) {
    const BatchToken& token = tokens[index];
    const BatchToken& before = tokens[index - 1];
    CHECK(token.sequence != before.sequence || token.position == before.position + 1,
          "tokens of sequence {} are out of order", token.sequence);
  }
}

// Counts what a GPU's part of a pass takes.
template <typename Work>
Result<void> timed(WorkerCounters& counters, const Work& work) {
  const uint64_t begin = ticks_now();
  auto done = work();
  counters.gpu_ticks.add(ticks_now() - begin);
  return done;
}

}  // namespace

Executor::Executor(Ranks& ranks, const KernelTable& kernels)
    : ranks_(ranks),
      kernels_(kernels),
      layout_(ranks.root_plan().batch_tokens, attention_blocks(ranks), prompt_blocks(ranks)),
      results_(ranks.count()),
      hidden_sums_((hidden_width() + kChunkColumns - 1) / kChunkColumns) {
  for (size_t rank = 0; rank < ranks.count(); ++rank) {
    GpuRank* gpu = ranks_[rank].gpu();
    if (gpu == nullptr) {
      has_processors_ = true;
      jobs_.emplace_back([this, rank](size_t worker) { walk(ranks_[rank], worker); });
      continue;
    }
    attention_units_ = std::max(attention_units_, ranks_[rank].plan().gpu.limits.attention_units);
    if (ranks.is_mixed()) {
      jobs_.emplace_back([this, rank](size_t) { drive(rank); });
    } else {
      jobs_.emplace_back([this, rank, gpu](size_t) {
        WorkerCounters& counters = ranks_[rank].counters(0);
        results_[rank] = timed(counters, [&] { return gpu->run(*batch_); });
        if (!results_[rank]) return;
        counters.exchange_bytes.add(gpu->exchanged().bytes);
        counters.exchange_ns.add(gpu->exchanged().nanoseconds);
      });
    }
    gpu_residual_.resize(hidden_width());
    gpu_norm_weights_.reserve(hidden_width());
  }
}

Result<void> Executor::run(const Batch& batch) {
  const Plan& plan = ranks_.root_plan();
  CHECK(batch.tokens.size() <= plan.batch_tokens, "{} tokens in a batch of at most {}",
        batch.tokens.size(), plan.batch_tokens);
  CHECK(batch.logit_tokens.size() <= plan.logit_rows, "{} rows of logits of at most {}",
        batch.logit_tokens.size(), plan.logit_rows);
  CHECK(batch.generated_tokens <= batch.tokens.size(), "{} generated tokens of {}",
        batch.generated_tokens, batch.tokens.size());
  CHECK(batch.draws.empty() || batch.draws.size() == batch.logit_tokens.size(),
        "{} draws from {} rows of logits", batch.draws.size(), batch.logit_tokens.size());
  CHECK(std::ranges::is_sorted(batch.logit_tokens), "rows of logits are wanted out of order");
  check_order(batch.tokens);
  if (failure_) return std::unexpected(*failure_);
  batch_ = &batch;
  if (has_processors_) layout_.arrange(batch);
  for (size_t rank = 0; rank < ranks_.count(); ++rank) ranks_[rank].workers().begin(jobs_[rank]);
  for (size_t rank = 0; rank < ranks_.count(); ++rank) ranks_[rank].workers().finish();
  const auto outcome = ranks_.outcome(results_);
  if (!outcome) return fail(outcome.error());
  return {};
}

std::unexpected<Error> Executor::fail(const Error& error) {
  failure_ = error;
  return std::unexpected(error);
}

void Executor::walk(Rank& rank, size_t worker) const {
  const Plan& plan = rank.plan();
  Barrier& barrier = rank.workers().barrier();
  WorkerCounters& counters = rank.counters(worker);
  const Pass pass{plan,          kernels_, *batch_, layout_,
                  barrier,       counters, worker,  rank.workers().count(),
                  panel_streams_};
  const bool alone = ranks_.count() == 1;
  const std::span<TaskCounter> tasks = rank.task_counters();
  for (size_t index = 0; index < plan.steps.size(); ++index) {
    const Step& step = plan.steps[index];
    // Everyone has left the step before, and nobody comes to it again before the next pass.
    if (worker == 0) {
      tasks[(index + tasks.size() - 1) % tasks.size()].next.store(0, std::memory_order_relaxed);
    }
    run_step(step.work, pass, tasks[index]);
    const uint64_t arrived = ticks_now();
    barrier.arrive(worker);
    if (alone || step.meet == Meet::kRank) {
      barrier.wait(worker);
    } else {
      barrier.wait_for_all_ranks(worker);
    }
    counters.wait_ticks.add(ticks_now() - arrived);
    counters.meetings.add(1);
  }
}

// A GPU among processors, by its worker: what it has computed lies in the host's memory where all
// ranks meet; the worker exchanges it as theirs do. After a failure it goes on meeting them, so
// that they come to an end.
void Executor::drive(size_t index) {
  Rank& rank = ranks_[index];
  GpuRank& gpu = *rank.gpu();
  const Plan& plan = rank.plan();
  Barrier& barrier = rank.workers().barrier();
  WorkerCounters& counters = rank.counters(0);
  const Pass pass{plan, kernels_, *batch_, layout_, barrier, counters};
  Result<void>& result = results_[index];
  const auto run_until = [&](Range steps) {
    if (result && !steps.empty()) result = timed(counters, [&] { return gpu.run_steps(steps); });
  };
  result = timed(counters, [&] { return gpu.begin(*batch_); });
  size_t begin = 0;
  for (size_t step = 0; step < plan.steps.size(); ++step) {
    if (plan.steps[step].meet != Meet::kAllRanks) continue;
    run_until({begin, step + 1});
    exchange_step(plan.steps[step].work, pass, rank.task_counters()[step]);
    begin = step + 1;
    const uint64_t arrived = ticks_now();
    barrier.arrive(0);
    barrier.wait_for_all_ranks(0);
    counters.wait_ticks.add(ticks_now() - arrived);
    counters.meetings.add(1);
  }
  run_until({begin, plan.steps.size()});
}

LogitRow Executor::logits(size_t row) {
  const Plan& plan = ranks_.root_plan();
  const float* begin = plan.logits + row * plan.logits_stride;
  const GpuCandidateRow* candidates = root_candidates();
  if (candidates == nullptr) return LogitRow(std::span(begin, plan.vocabulary_size));
  const GpuCandidateRow& found = candidates[row];
  std::optional<LogitDraw> draw;
  if (row < batch_->draws.size() && batch_->draws[row].inverse_temperature != 0.0F) {
    const GpuDrawn& drawn = ranks_[0].gpu()->drawn()[row];
    draw = {batch_->draws[row], drawn.sum, drawn.token};
  }
  return LogitRow(
      std::span(found.tokens, found.count), std::span(found.logits, found.count),
      found.not_finite == 0, [this, begin] { return fetch_logits(begin); }, draw);
}

Result<std::span<const float>> Executor::fetch_logits(const float* row) {
  if (failure_) return std::unexpected(*failure_);
  auto fetched = ranks_[0].gpu()->fetch(row, ranks_.root_plan().vocabulary_size);
  if (!fetched) return fail(fetched.error());
  return fetched;
}

// By the thread that has run the pass: the workers have left it, and nobody writes to the residual
// before the next one.
Result<void> Executor::read_hidden_row(size_t token, std::span<float> row) {
  CHECK(row.size() == hidden_width(), "room for {} columns of a hidden row of {}", row.size(),
        hidden_width());
  CHECK(batch_ != nullptr && token < batch_->tokens.size(), "token {} is not in the batch", token);
  if (failure_) return std::unexpected(*failure_);
  for (size_t rank = 0; rank < ranks_.count(); ++rank) {
    auto weighed = weigh_hidden(ranks_[rank], token, row);
    if (!weighed) return fail(weighed.error());
  }
  float factor = 0;
  norm_factors({.chunks = {hidden_sums_.data(), hidden_sums_.size()},
                .columns = row.size(),
                .epsilon = ranks_.root_plan().hidden.epsilon},
               {0, 1}, &factor);
  for (float& value : row) value *= factor;
  return {};
}

// The rank's columns of the row, times the norm's weights.
Result<void> Executor::weigh_hidden(Rank& rank, size_t token, std::span<float> row) {
  const HiddenRows& part = rank.plan().hidden;
  const size_t count = part.columns.size();
  if (count == 0) return {};
  const float* residual = part.residual + token * part.residual_stride;
  const float* weights = part.norm_weight;
  if (GpuRank* gpu = rank.gpu(); gpu != nullptr) {
    // One rank alone has columns of hidden rows where GPUs are ranks: its weights are all there
    // are.
    if (gpu_norm_weights_.empty()) {
      gpu_norm_weights_.resize(count);
      if (auto read = gpu->read(weights, gpu_norm_weights_); !read) return read;
    }
    const auto row_part = std::span(gpu_residual_).first(count);
    if (auto read = gpu->read(residual, row_part); !read) return read;
    residual = gpu_residual_.data();
    weights = gpu_norm_weights_.data();
  }
  kernels_.weigh(residual, weights, count, row.data() + part.columns.begin,
                 hidden_sums_.data() + part.columns.begin / kChunkColumns);
  return {};
}

}  // namespace lockstep
