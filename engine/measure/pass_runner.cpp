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
  const size_t pages =
      sequences * most_pages(plan.kv.windows, tokens_each, plan.batch_tokens, kPageTokens);
  size_t most = std::min(plan.logit_rows, plan.batch_tokens);
  size_t pages_there = plan.kv.page_count;
  if (const auto* gpu = std::get_if<GpuAreas>(&plan.areas); gpu != nullptr) {
    most = std::min(most, gpu->limits.sequences);
    pages_there = std::min(pages_there, gpu->limits.pages * gpu->limits.groups);
  }
  if (plan.states.slot_count > 0) most = std::min(most, plan.states.slot_count);
  if (sequences == 0 || sequences > most) {
    return invalid_input("{} sequences side by side; it must be from 1 to the {} of a pass",
                         sequences, most);
  }
  if (pages <= pages_there) return {};
  return invalid_input(
      "{} sequences of {} tokens need {} KV pages of {} tokens; there are {}: raise --context or "
      "--sequences",
      sequences, tokens_each, pages, kPageTokens, pages_there);
}

PassRunner::PassRunner(Executor& executor, const Plan& plan, size_t sequences, size_t tokens_each,
                       std::function<void(const Batch&)> on_pass, PassClock clock)
    : executor_(executor),
      plan_(plan),
      on_pass_(std::move(on_pass)),
      lengths_(sequences),
      clock_(std::move(clock)) {
  if (executor.pass_deadline()) throughput_.emplace(executor.pass_deadline());
  take_pages(tokens_each);
  start_pass();
  batch_.cleared_pages.resize(page_count_);
  std::iota(batch_.cleared_pages.begin(), batch_.cleared_pages.end(), 0U);
}

// The pages behind a window are written over by what comes after.
void PassRunner::take_pages(size_t tokens_each) {
  for (size_t sequence = 0; sequence < lengths_.size(); ++sequence) {
    for (const AttentionWindow& window : plan_.kv.windows) {
      const size_t count = window.most_pages(tokens_each, plan_.batch_tokens, kPageTokens);
      std::vector<uint32_t>& table = tables_.emplace_back(pages_for(tokens_each));
      for (size_t page = 0; page < table.size(); ++page) {
        table[page] = static_cast<uint32_t>(page_count_ + page % count);
      }
      page_count_ += count;
    }
  }
}

void PassRunner::start_pass() {
  batch_.clear();
  batch_.group_count = plan_.kv.group_count();
  batch_.page_tables.assign(tables_.begin(), tables_.end());
  batch_.state_slots.resize(lengths_.size());
  std::iota(batch_.state_slots.begin(), batch_.state_slots.end(), 0U);
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
