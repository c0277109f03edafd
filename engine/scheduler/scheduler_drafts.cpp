// The scheduler's part in speculation: how many drafted tokens a pass computes, and which of them
// have become known.
#include <algorithm>
#include <limits>

#include "engine/base/check.h"
#include "engine/scheduler/scheduler.h"

namespace lockstep {

size_t Scheduler::stream_count() const {
  return static_cast<size_t>(
      std::ranges::count_if(running_, [](const Sequence* one) { return one->streams(); }));
}

// With states a draft ends at a border of pages, so that a checkpoint can be kept there, and
// nothing of what is computed again after a rejected token has been known to others.
size_t Scheduler::draft_tokens_most(SequenceId id, DraftSource source) const {
  const Sequence& sequence = sequences_.at(id);
  if (!sequence.running || !sequence.streams()) return 0;
  const size_t known = sequence.tokens.size();
  size_t most = sequence.most - known;
  if (pages_.has_states()) most = std::min(most, pages_.next_border(known) - known);
  size_t length = limits_.draft_tokens.value_or(0);
  if (!limits_.draft_tokens) {
    const DraftAcceptance& acceptance = sequence.acceptances[static_cast<size_t>(source)];
    const double least_chance = least_draft_chance(row_cost_, stream_count());
    length = std::min(draft_length(acceptance, least_chance, pages_.has_states()),
                      row_cost_.draft_tokens_most());
  }
  return std::min({length, kDraftTokensMost, most});
}

bool Scheduler::reading_pays(SequenceId id, double seconds) const {
  constexpr size_t kLeastAnswer = 16;
  if (limits_.draft_tokens || seconds == 0) return true;
  const Sequence& sequence = sequences_.at(id);
  const size_t known = sequence.tokens.size();
  const size_t to_come =
      std::min(sequence.most - known, std::max(known - sequence.prompt, kLeastAnswer));
  const size_t streams = stream_count();
  const auto& acceptance = sequence.acceptances[static_cast<size_t>(DraftSource::kModel)];
  const double more = expected_tokens(acceptance, draft_tokens_most(id, DraftSource::kModel)) - 1;
  const double token_seconds = row_cost_.seconds(streams) / static_cast<double>(streams);
  // Half of the gain is left for what drafts cost.
  return seconds <= static_cast<double>(to_come) * more * token_seconds / 2;
}

size_t Scheduler::shared_draft_tokens_most(std::span<const SequenceId> sequences,
                                           double pass_seconds) const {
  if (limits_.draft_tokens) return std::min(*limits_.draft_tokens, kDraftTokensMost);
  const size_t streams = stream_count();
  const double seconds = row_cost_.seconds(streams);
  std::vector<SharedDraft> drafts;
  for (const SequenceId id : sequences) {
    const Sequence& sequence = sequences_.at(id);
    const auto& acceptance = sequence.acceptances[static_cast<size_t>(DraftSource::kModel)];
    drafts.push_back({acceptance.rate(), draft_tokens_most(id, DraftSource::kModel)});
  }
  return shared_draft_length(drafts, row_cost_.share_of_next(streams),
                             seconds > 0 ? pass_seconds / seconds : 0, streams);
}

// Plans what rejected drafts have left to be computed again, beside one token of each stream. Half
// of the tokens are kept for others, if there are any, and units for the first token of each.
void Scheduler::plan_again(Budget& left) {
  size_t tokens = left.tokens;
  size_t kept_units = 0;
  for (const Sequence* one : running_) {
    if (one->streams()) continue;
    tokens = left.tokens / 2;
    kept_units = std::max(kept_units, attention_units(one->computed, 1));
  }
  for (Sequence* one : running_) {
    if (one->again == 0 || !one->streams()) continue;
    size_t count = std::min(one->again, tokens);
    const auto units = [&] { return attention_units(one->computed + 1, count); };
    while (count > 0 && units() + kept_units > left.units) --count;
    one->planned += count;
    tokens -= count;
    left.tokens -= count;
    left.units -= units();
  }
}

void Scheduler::propose(SequenceId id, std::span<const int32_t> drafts, DraftSource source) {
  CHECK(!pass_open_, "sequence {} is drafted in the middle of a pass", id);
  const size_t most = draft_tokens_most(id, source);
  CHECK(drafts.size() <= most, "sequence {} has {} drafted tokens, {} at most", id, drafts.size(),
        most);
  Sequence& sequence = at(id);
  sequence.drafts.assign(drafts.begin(), drafts.end());
  sequence.draft_source = source;
}

std::span<const int32_t> Scheduler::drafts(SequenceId id) const {
  return sequences_.at(id).drafts;
}

// Without a number that was asked for, no more than the stream that gains least can bear.
size_t Scheduler::draft_rows_most() const {
  const size_t streams = stream_count();
  if (limits_.draft_tokens || streams == 0) return limits_.batch_tokens;
  double least_tokens = std::numeric_limits<double>::infinity();
  for (const Sequence* one : running_) {
    if (!one->streams()) continue;
    const DraftAcceptance& acceptance = one->acceptances[static_cast<size_t>(one->draft_source)];
    least_tokens = std::min(least_tokens, expected_tokens(acceptance, one->drafts.size()));
  }
  const size_t rows = lockstep::draft_rows_most(row_cost_, streams, least_tokens);
  // Rejected tokens may let as many be computed again.
  return pages_.has_states() ? rows / 2 : rows;
}

// Drafts get what the others leave of the pass, each sequence the first tokens of its own.
void Scheduler::plan_drafts() {
  Budget left = {limits_.batch_tokens, limits_.logit_rows, limits_.attention_units};
  for (const Sequence* one : running_) {
    const size_t end = one->computed + one->planned;
    left.tokens -= one->planned;
    left.rows -= end - logits_begin(*one, end);
    if (!goes_as_generated(*one)) continue;
    left.units -= std::min(left.units, attention_units(one->computed, one->planned));
  }
  size_t drafted_most = draft_rows_most();
  for (Sequence* one : running_) {
    if (!one->streams() || one->planned <= one->again) {  // its last known token is not computed
      one->drafts.clear();
      continue;
    }
    size_t count = std::min({one->drafts.size(), left.tokens, left.rows, drafted_most});
    const size_t begin = one->tokens.size();
    while (count > 0 && attention_units(begin, count) > left.units) --count;
    one->drafts.resize(count);
    one->planned += count;
    left.tokens -= count;
    left.rows -= count;
    drafted_most -= count;
    left.units -= attention_units(begin, count);
  }
}

// Takes pages that no sequence holds; if there is none, the rest of the draft is dropped. So is a
// draft before which a state cannot be kept.
void Scheduler::take_draft_pages() {
  for (Sequence* one : running_) {
    if (one->drafts.empty()) continue;
    while (!pages_.has_places(*one, one->computed + one->planned) &&
           pages_.extend(*one, schedule_.cleared_pages)) {
    }
    const size_t places = one->page_count() * limits_.page_tokens - one->computed;
    const size_t known = one->again + 1;
    one->planned = std::min(one->planned, places);
    one->drafts.resize(one->planned - known);
    if (one->drafts.empty() || !pages_.has_states()) continue;
    if (pages_.copy_state_before_draft(*one)) continue;
    one->planned = known;
    one->drafts.clear();
  }
}

// Sources without a draft in this pass.
void Scheduler::rest_drafts(Sequence& sequence) const {
  for (size_t source = 0; source < kDraftSourceCount; ++source) {
    if (sequence.drafts.empty() || sequence.draft_source != static_cast<DraftSource>(source)) {
      sequence.acceptances[source].rest();
    }
  }
}

bool Scheduler::append_token(SequenceId id, int32_t token) {
  Sequence& sequence = at(id);
  CHECK(sequence.sampled && sequence.tokens.size() < sequence.most,
        "sequence {} has {} known tokens, {} computed, {} at most", id, sequence.tokens.size(),
        sequence.computed, sequence.most);
  sequence.tokens.push_back(token);
  sequence.sampled = verify_draft(sequence);
  return sequence.sampled;
}

// Whether the last known token is the next drafted one: then its keys and values are in the cache,
// and the logits behind it are the next row of the pass.
bool Scheduler::verify_draft(Sequence& sequence) {
  const size_t place = sequence.verified;
  const bool is_rejected =
      place < sequence.drafts.size() && sequence.drafts[place] != sequence.tokens.back();
  if (is_rejected || place == sequence.drafts.size()) {
    if (!sequence.drafts.empty()) {
      sequence.acceptance(sequence.draft_source).add(place, is_rejected);
      if (sequence.draft_source == DraftSource::kModel) model_acceptance_.add(place, is_rejected);
    }
    if (sequence.state_before) pages_.take_state_back(sequence);
    sequence.drafts.clear();
    sequence.verified = 0;
    pages_.trim(sequence);
    return false;
  }
  ++sequence.verified;
  const size_t begin = sequence.computed;
  const size_t end = sequence.tokens.size();
  charge(sequence, std::max(begin, sequence.reached), end);
  sequence.computed = end;
  sequence.reached = std::max(sequence.reached, end);
  sequence.proven = end;
  if (!sequence.state_before) {
    pages_.publish(sequence, begin, end);
  } else if (sequence.verified == sequence.drafts.size()) {
    pages_.accept_draft(sequence);
  }
  return true;
}

}  // namespace lockstep
