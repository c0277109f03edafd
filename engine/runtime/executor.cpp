#include "engine/runtime/executor.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/pass/form_writer.h"
#include "engine/runtime/hosts/host_exchange.h"

namespace lockstep {

namespace {

RankNeeds needs_of(Ranks& ranks) {
  RankNeeds needs = ranks[0].needs();
  for (size_t rank = 1; rank < ranks.count(); ++rank) needs = together(needs, ranks[rank].needs());
  return needs;
}

void check_order(std::span<const BatchToken> tokens) {
  for (size_t index = 1; index < tokens.size(); ++index) {
    const BatchToken& token = tokens[index];
    const BatchToken& before = tokens[index - 1];
    CHECK(token.sequence != before.sequence || token.position == before.position + 1,
          "tokens of sequence {} are out of order", token.sequence);
  }
}

void check_states(const Batch& batch, size_t slot_count) {
  if (slot_count == 0) return;
  CHECK(batch.state_slots.size() == batch.sequence_count(), "{} sequences with {} states",
        batch.sequence_count(), batch.state_slots.size());
  for (const uint32_t slot : batch.state_slots) {
    CHECK(slot < slot_count, "slot {} of {} for states", slot, slot_count);
    CHECK(std::ranges::count(batch.state_slots, slot) == 1, "slot {} for two sequences' states",
          slot);
  }
  for (const Batch::StateCopy& copy : batch.state_copies) {
    CHECK(copy.from < slot_count && copy.to < slot_count && copy.from != copy.to,
          "a state is copied from slot {} to {} of {}", copy.from, copy.to, slot_count);
  }
}

}  // namespace

Executor::Executor(Ranks& ranks, const KernelTable& kernels)
    : ranks_(ranks),
      kernels_(kernels),
      needs_(needs_of(ranks)),
      layout_(ranks.root_plan().batch_tokens, needs_.attention_blocks, needs_.prompt_blocks,
              ranks.root_plan().kv.windows),
      input_{.kernels = &kernels, .layout = &layout_, .panel_streams = preferred_panel_streams()},
      results_(ranks.count()),
      hidden_sums_((hidden_width() + kChunkColumns - 1) / kChunkColumns) {
  draws_.reserve(ranks.root_plan().logit_rows);
}

Result<void> Executor::run(const Batch& batch) {
  const Plan& plan = ranks_.root_plan();
  CHECK(batch.tokens.size() <= plan.batch_tokens, "{} tokens in a batch of at most {}",
        batch.tokens.size(), plan.batch_tokens);
  CHECK(batch.logit_tokens.size() <= plan.logit_rows, "{} rows of logits of at most {}",
        batch.logit_tokens.size(), plan.logit_rows);
  CHECK(batch.generated_tokens <= batch.tokens.size(), "{} generated tokens of {}",
        batch.generated_tokens, batch.tokens.size());
  CHECK(batch.given_rows.size() == batch.tokens.size() * plan.given_columns,
        "{} columns are given with {} tokens, of rows of {}", batch.given_rows.size(),
        batch.tokens.size(), plan.given_columns);
  CHECK(batch.draws.empty() || batch.draws.size() == batch.logit_tokens.size(),
        "{} draws from {} rows of logits", batch.draws.size(), batch.logit_tokens.size());
  CHECK(std::ranges::is_sorted(batch.logit_tokens), "rows of logits are wanted out of order");
  check_order(batch.tokens);
  check_states(batch, plan.states.slot_count);
  if (failure_) return std::unexpected(*failure_);
  token_count_ = batch.tokens.size();
  draws_.assign(batch.draws.begin(), batch.draws.end());
  input_.batch = &batch;
  if (needs_.layout) layout_.arrange(batch);
  HostExchange* const hosts = ranks_.hosts();
  if (hosts != nullptr) {
    if (auto begun = hosts->begin_pass(batch); !begun) return fail(begun.error());
  }
  for (size_t rank = 0; rank < ranks_.count(); ++rank) ranks_[rank].begin(input_);
  for (size_t rank = 0; rank < ranks_.count(); ++rank) results_[rank] = ranks_[rank].finish();
  auto outcome = ranks_.outcome(results_);
  if (hosts != nullptr && outcome) outcome = hosts->finish_pass();
  if (!outcome) return fail(outcome.error());
  return {};
}

std::unexpected<Error> Executor::fail(const Error& error) {
  failure_ = error;
  return std::unexpected(error);
}

LogitRow Executor::logits(size_t row) {
  const Plan& plan = ranks_.root_plan();
  if (!draws_tokens()) {
    const float* const logits = ranks_[0].addresses().at(plan.logits);
    return LogitRow(std::span(logits + row * plan.logits_stride, plan.vocabulary_size));
  }
  const LogitDrawRequest request = row < draws_.size() ? draws_[row] : LogitDrawRequest();
  const FoundCandidates found = ranks_[0].candidates(row, request);
  return LogitRow(
      found.tokens, found.logits, found.finite, [this, row] { return fetch_logits(row); },
      found.draw);
}

Result<std::span<const float>> Executor::fetch_logits(size_t row) {
  if (failure_) return std::unexpected(*failure_);
  auto fetched = ranks_[0].fetch_logits(row);
  if (!fetched) return fail(fetched.error());
  return fetched;
}

// By the thread that has run the pass: the workers have left it, and nobody writes to the residual
// before the next one.
Result<void> Executor::read_hidden_row(size_t token, std::span<float> row, HiddenForm form) {
  CHECK(row.size() == hidden_width(), "space for {} columns of a hidden row of {}", row.size(),
        hidden_width());
  CHECK(token < token_count_, "token {} is not in the batch", token);
  if (failure_) return std::unexpected(*failure_);
  if (HostExchange* const hosts = ranks_.hosts(); hosts != nullptr && hosts->leads()) {
    if (auto asked = hosts->ask_for_hidden_row(token, form); !asked) return fail(asked.error());
  }
  for (size_t rank = 0; rank < ranks_.count(); ++rank) {
    auto taken = take_hidden(ranks_[rank], token, row, form);
    if (!taken) return fail(taken.error());
  }
  if (HostExchange* const hosts = ranks_.hosts(); hosts != nullptr) {
    if (auto gathered = hosts->gather_hidden_row(row, hidden_sums_); !gathered) {
      return fail(gathered.error());
    }
  }
  if (form == HiddenForm::kResidual) return {};
  const float factor =
      norm_factor(hidden_sums_.data(), row.size(), ranks_.root_plan().hidden.epsilon);
  for (float& value : row) value *= factor;
  return {};
}

// The rank's columns of the row; to be normed, times the norm's weights.
Result<void> Executor::take_hidden(Rank& rank, size_t token, std::span<float> row,
                                   HiddenForm form) {
  const HiddenRows& part = rank.plan().hidden;
  const size_t count = part.columns.size();
  if (count == 0) return {};
  const auto held = rank.hidden_part(token);
  if (!held) return std::unexpected(held.error());
  if (form == HiddenForm::kResidual) {
    std::copy_n(held->residual, count, row.data() + part.columns.begin);
    return {};
  }
  kernels_.weigh(held->residual, held->weights, count, row.data() + part.columns.begin,
                 hidden_sums_.data() + part.columns.begin / kChunkColumns);
  return {};
}

}  // namespace lockstep
