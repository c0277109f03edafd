#include "engine/runtime/executor.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/checked_math.h"
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
  for (size_t index = 0; index < batch.checkpoints.size(); ++index) {
    const auto [token, slot] = batch.checkpoints[index];
    CHECK(token < batch.tokens.size() && (index == 0 || token > batch.checkpoints[index - 1].token),
          "a state is kept behind token {} of {}, out of order", token, batch.tokens.size());
    CHECK(slot < slot_count && std::ranges::count(batch.state_slots, slot) == 0,
          "a state is kept in slot {} of {}, a sequence's own", slot, slot_count);
    CHECK(std::ranges::count(batch.checkpoints, slot, &Batch::Checkpoint::slot) == 1,
          "two states are kept in slot {}", slot);
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
      results_(ranks.count()) {
  for (PassOutline* pass : {&last_, &begun_[0], &begun_[1]}) {
    pass->draws.reserve(ranks.root_plan().logit_rows);
  }
}

void Executor::check(const Batch& batch) const {
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
}

Result<void> Executor::run(const Batch& batch) {
  auto begun = begin(batch);
  return begun ? finish() : begun;
}

Result<void> Executor::begin(const Batch& batch) {
  check(batch);
  CHECK(batch.picked_rows.empty(), "a pass has tokens of one before that has ended");
  if (failure_) return std::unexpected(*failure_);
  CHECK(begun_count_ == 0, "{} passes have begun already", begun_count_);
  input_.batch = &batch;
  if (needs_.layout) layout_.arrange(batch);
  HostExchange* const hosts = ranks_.hosts();
  if (hosts != nullptr) {
    if (auto begun = hosts->begin_pass(batch); !begun) return fail(begun.error());
    input_.rows = &hosts->rows();
  }
  for (size_t rank = 0; rank < ranks_.count(); ++rank) ranks_[rank].begin(input_);
  begun_[begun_count_++].take(batch);
  return {};
}

Result<bool> Executor::begin_ahead(const Batch& batch) {
  check(batch);
  if (failure_) return std::unexpected(*failure_);
  CHECK(begun_count_ == 1, "{} passes have begun already", begun_count_);
  CHECK(batch.picked_rows.size() == batch.tokens.size(), "{} picks for {} tokens",
        batch.picked_rows.size(), batch.tokens.size());
  for (const uint32_t row : batch.picked_rows) {
    CHECK(row < begun_[0].row_count, "row {} of {}", row, begun_[0].row_count);
  }
  if (!begins_ahead()) return false;
  PassInput input = input_;
  input.batch = &batch;
  auto begun = ranks_[0].begin_ahead(input);
  if (!begun) return fail(begun.error());
  if (*begun) begun_[begun_count_++].take(batch);
  return begun;
}

bool Executor::begins_ahead() const {
  return ranks_.count() == 1 && ranks_.hosts() == nullptr && ranks_[0].begins_ahead();
}

void Executor::finish_all() {
  while (begun_count_ > 0 && finish()) {
  }
}

Result<void> Executor::finish() {
  if (failure_) return std::unexpected(*failure_);
  CHECK(begun_count_ > 0, "no pass has begun");
  std::swap(last_, begun_[0]);
  std::swap(begun_[0], begun_[1]);
  --begun_count_;
  for (size_t rank = 0; rank < ranks_.count(); ++rank) results_[rank] = ranks_[rank].finish();
  auto outcome = ranks_.outcome(results_);
  HostExchange* const hosts = ranks_.hosts();
  if (hosts != nullptr) {
    outcome = outcome ? hosts->finish_pass() : Result<void>(hosts->fail_pass(outcome.error()));
  }
  if (!outcome) return fail(outcome.error());
  return {};
}

std::unexpected<Error> Executor::fail(const Error& error) {
  failure_ = error;
  begun_count_ = 0;
  return std::unexpected(error);
}

LogitRow Executor::logits(size_t row) {
  const Plan& plan = ranks_.root_plan();
  if (!draws_tokens()) {
    const float* const logits = ranks_[0].addresses().at(plan.logits);
    return LogitRow(std::span(logits + row * plan.logits_stride, plan.vocabulary_size));
  }
  const LogitDrawRequest request = row < last_.draws.size() ? last_.draws[row] : LogitDrawRequest();
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
Result<void> Executor::read_hidden_rows(size_t first_token, std::span<float> rows,
                                        HiddenForm form) {
  const size_t width = hidden_width();
  const size_t count = rows.size() / width;
  CHECK(count > 0 && count * width == rows.size() && count <= hidden_rows_at_once(),
        "space for {} floats of hidden rows of {}, of which {} are read at once", rows.size(),
        width, hidden_rows_at_once());
  CHECK(first_token + count <= last_.token_count, "tokens {} to {} are not in the batch",
        first_token, first_token + count);
  if (failure_) return std::unexpected(*failure_);
  const size_t chunks = divide_up(width, kChunkColumns);
  hidden_sums_.resize(count * chunks);
  const auto row_of = [&](size_t row) { return rows.subspan(row * width, width); };
  const auto sums_of = [&](size_t row) {
    return std::span(hidden_sums_).subspan(row * chunks, chunks);
  };
  HostExchange* const hosts = ranks_.hosts();
  if (hosts != nullptr && hosts->leads()) {
    auto asked = hosts->ask_for_hidden_rows(first_token, count, form);
    if (!asked) return fail(asked.error());
  }
  for (size_t row = 0; row < count; ++row) {
    for (size_t rank = 0; rank < ranks_.count(); ++rank) {
      auto taken = take_hidden(ranks_[rank], first_token + row, row_of(row), sums_of(row), form);
      if (!taken) return fail(taken.error());
    }
  }
  if (hosts != nullptr) {
    auto gathered = hosts->gather_hidden_rows(count, rows, hidden_sums_);
    if (!gathered) return fail(gathered.error());
  }
  if (form == HiddenForm::kResidual) return {};
  for (size_t row = 0; row < count; ++row) {
    const float factor = norm_factor(sums_of(row).data(), width, ranks_.root_plan().hidden.epsilon);
    for (float& value : row_of(row)) value *= factor;
  }
  return {};
}

size_t Executor::kept_width() const {
  size_t width = 0;
  for (const KeptRows& kept : ranks_.root_plan().kept) width += kept.width;
  return width;
}

// As read_hidden_rows().
Result<void> Executor::read_kept_rows(size_t token, std::span<float> row) {
  CHECK(row.size() == kept_width(), "space for {} columns of kept rows of {}", row.size(),
        kept_width());
  CHECK(token < last_.token_count, "token {} is not in the batch", token);
  if (failure_) return std::unexpected(*failure_);
  HostExchange* const hosts = ranks_.hosts();
  const bool asks_hosts = hosts != nullptr && hosts->others_keep_rows();
  if (asks_hosts && hosts->leads()) {
    if (auto asked = hosts->ask_for_kept_rows(token); !asked) return fail(asked.error());
  }
  for (size_t rank = 0; rank < ranks_.count(); ++rank) {
    float* target = row.data();
    for (const KeptRows& kept : ranks_[rank].plan().kept) {
      const float* const rows = ranks_[rank].addresses().at(kept.rows);
      const size_t count = kept.columns.size();
      if (count > 0) std::copy_n(rows + token * kept.stride, count, target + kept.columns.begin);
      target += kept.width;
    }
  }
  if (asks_hosts) {
    if (auto gathered = hosts->gather_kept_rows(row); !gathered) return fail(gathered.error());
  }
  return {};
}

size_t Executor::hidden_rows_at_once() const {
  return lockstep::hidden_rows_at_once(hidden_width());
}

// The rank's columns of the row; to be normed, times the norm's weights, with the sums of chunks.
Result<void> Executor::take_hidden(Rank& rank, size_t token, std::span<float> row,
                                   std::span<float> sums, HiddenForm form) {
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
                 sums.data() + part.columns.begin / kChunkColumns);
  return {};
}

}  // namespace lockstep
