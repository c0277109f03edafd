#include "engine/measure/pass_runner.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "engine/placement/memory_fit.h"
#include "engine/scheduler/scheduler.h"

namespace lockstep {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Result<void> PassRunner::check_fit(const Plan& plan, size_t sequences, size_t tokens_each) {
  const size_t pages = pages_for(tokens_each) * sequences;
  size_t most = std::min(plan.logit_rows, plan.batch_tokens);
  size_t most_pages = plan.kv.page_count;
  if (const auto* gpu = std::get_if<GpuAreas>(&plan.areas); gpu != nullptr) {
    most = std::min(most, gpu->limits.sequences);
    most_pages = std::min(most_pages, gpu->limits.pages);
  }
  if (sequences == 0 || sequences > most) {
    return invalid_input("{} sequences side by side; it must be from 1 to the {} of a pass",
                         sequences, most);
  }
  if (pages <= most_pages) return {};
  return invalid_input(
      "{} sequences of {} tokens need {} KV pages of {} tokens; there are {}: raise --context or "
      "--sequences",
      sequences, tokens_each, pages, kPageTokens, most_pages);
}

PassRunner::PassRunner(Executor& executor, const Plan& plan, size_t sequences, size_t tokens_each,
                       std::function<void(const Batch&)> on_pass, PassClock clock)
    : executor_(executor),
      plan_(plan),
      on_pass_(std::move(on_pass)),
      lengths_(sequences),
      clock_(std::move(clock)) {
  if (executor.pass_deadline()) throughput_.emplace(executor.pass_deadline());
  const size_t pages_each = pages_for(tokens_each);
  pages_.resize(sequences * pages_each);
  std::iota(pages_.begin(), pages_.end(), 0U);
  for (size_t sequence = 0; sequence < sequences; ++sequence) {
    tables_.push_back(std::span(pages_).subspan(sequence * pages_each, pages_each));
  }
  start_pass();
  batch_.cleared_pages = pages_;
}

void PassRunner::start_pass() {
  batch_.clear();
  batch_.page_tables = tables_;
  pass_tokens_ = {};
  if (throughput_) prompts_most_ = throughput_->prompts_most();
}

// For one more prompted token that costs so much.
bool PassRunner::has_time_for(double work) const {
  if (!throughput_ || pass_tokens_.prompted < kPromptChunkLeast) return true;
  return pass_tokens_.prompted < prompts_most_.alone &&
         pass_tokens_.prompt_work + work <= prompts_most_.work_alone;
}

void PassRunner::add(size_t sequence, TokenId token, bool logits, TokenOrigin origin) {
  const bool generated = origin == TokenOrigin::kGenerated;
  if (generated && batch_.generated_tokens < batch_.tokens.size()) run();
  if (logits && batch_.logit_tokens.size() == plan_.logit_rows) run();
  if (!generated) {
    const double work = prompt_work(lengths_[sequence], 1);
    if (!has_time_for(work)) {
      ++shortened_passes_;
      run();
    }
    ++pass_tokens_.prompted;
    pass_tokens_.prompt_work += work;
  }
  if (logits) batch_.logit_tokens.push_back(static_cast<uint32_t>(batch_.tokens.size()));
  batch_.tokens.push_back({.token = token,
                           .position = static_cast<uint32_t>(lengths_[sequence]++),
                           .sequence = static_cast<uint32_t>(sequence)});
  if (generated) batch_.generated_tokens = batch_.tokens.size();
  if (batch_.tokens.size() == plan_.batch_tokens) run();
}

void PassRunner::run() {
  if (batch_.tokens.empty()) return;
  const double begin = clock_();
  if (outcome_) outcome_ = executor_.run(batch_);
  if (outcome_ && throughput_) {
    pass_tokens_.all = batch_.tokens.size();
    throughput_->add_pass(pass_tokens_, clock_() - begin);
  }
  if (outcome_) on_pass_(batch_);
  start_pass();
}

}  // namespace lockstep
