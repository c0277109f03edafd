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

// A state cannot take back what a rejected token has done to it.
size_t Scheduler::draft_tokens_most(SequenceId id, DraftSource source) const {
  const Sequence& sequence = sequences_.at(id);
  if (!sequence.running || !sequence.streams() || limits_.state_slots > 0) return 0;
  size_t length = limits_.draft_tokens.value_or(0);
  if (!limits_.draft_tokens) {
    const DraftAcceptance& acceptance = sequence.acceptances[static_cast<size_t>(source)];
    length = std::min(draft_length(acceptance, least_draft_chance(row_cost_, stream_count())),
                      row_cost_.draft_tokens_most());
  }
  return std::min({length, kDraftTokensMost, sequence.most - sequence.tokens.size()});
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
  return lockstep::draft_rows_most(row_cost_, streams, least_tokens);
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
    if (!one->streams() || one->planned == 0) {
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

// Takes pages that no sequence holds; if there is none, the rest of the draft is dropped.
void Scheduler::take_draft_pages() {
  for (Sequence* one : running_) {
    if (one->drafts.empty()) continue;
    while (!pages_.has_places(*one, one->computed + one->planned) &&
           pages_.extend(*one, schedule_.cleared_pages)) {
    }
    const size_t places = one->page_count() * limits_.page_tokens - one->computed;
    one->planned = std::min(one->planned, places);
    one->drafts.resize(one->planned - 1);
  }
}

// Sources without a draft in this pass.
void Scheduler::rest_drafts(Sequence& sequence) const {
  for (const DraftSource source : {DraftSource::kDrafter, DraftSource::kGrammar}) {
    if (sequence.drafts.empty() || sequence.draft_source != source) {
      sequence.acceptance(source).rest();
    }
  }
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
    }
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
  pages_.publish(sequence, begin, end);
  return true;
}

}  // namespace lockstep
