// The slots of a sequence with states: its own, the checkpoint that it begins from, those that it
// leaves, and one from before a draft.
#include <algorithm>
#include <bit>
#include <optional>
#include <ranges>
#include <utility>
#include <vector>

#include "engine/scheduler/sequence_pages.h"

namespace lockstep {
namespace {

// Pages that must lie between a checkpoint and the one before it, which may make way for it: fewer
// are computed again as fast. A guess, for any machine.
constexpr size_t kLeastPages = 2;
// The same where nothing is known to end: of the points at distances that double, the first of
// which is kFirstDistance.
constexpr size_t kLeastPagesWithin = 4;
constexpr size_t kFirstDistance = 8;

bool is_doubled_distance(size_t pages) {
  return pages >= kFirstDistance && std::has_single_bit(pages / kFirstDistance) &&
         pages % kFirstDistance == 0;
}

}  // namespace

void SequencePages::begin_from(Sequence& sequence, BlockId block) {
  const uint32_t slot = cache_.checkpoint(block).value();
  cache_.hold_slot(slot);
  cache_.use_checkpoint(block);
  release_state(sequence);
  sequence.state_source = slot;
  sequence.checkpoint = sequence.blocks.size();
}

void SequencePages::release_state(Sequence& sequence) {
  for (std::optional<uint32_t>* const slot : {&sequence.state, &sequence.state_source}) {
    if (*slot) cache_.release_slot(**slot);
    slot->reset();
  }
  drop_state_before(sequence);
  sequence.again = 0;
  sequence.answer_checkpoint = 0;
}

bool SequencePages::take_state(Sequence& sequence) {
  if (!has_states() || sequence.state) return true;
  std::optional<uint32_t>& source = sequence.state_source;
  sequence.state = cache_.take_slot();
  if (!sequence.state) return take_source(sequence);
  if (source) {
    copies_.push_back({*source, *sequence.state});
    cache_.release_slot(*std::exchange(source, std::nullopt));
  }
  return true;
}

// The sequence takes its checkpoint as its own slot, if no other sequence is to begin from it.
bool SequencePages::take_source(Sequence& sequence) {
  std::optional<uint32_t>& source = sequence.state_source;
  if (!source || cache_.slots().pool().holders(*source) > 1) return false;
  const BlockId block = cache_.slots().block(*source);
  if (block != 0) cache_.drop_checkpoint(block);
  sequence.state = std::exchange(source, std::nullopt);
  return true;
}

bool SequencePages::copy_state_before_draft(Sequence& sequence) {
  const auto slot = cache_.take_slot();
  if (!slot) return false;
  copies_.push_back({sequence.state.value(), *slot});
  sequence.state_before = {.slot = *slot, .tokens = sequence.computed};
  return true;
}

void SequencePages::drop_state_before(Sequence& sequence) {
  if (sequence.state_before) cache_.release_slot(sequence.state_before->slot);
  sequence.state_before.reset();
}

void SequencePages::accept_draft(Sequence& sequence) {
  const size_t begin = sequence.state_before.value().tokens;
  drop_state_before(sequence);
  publish(sequence, begin, sequence.computed);
  keep_answer(sequence);
}

void SequencePages::take_state_back(Sequence& sequence) {
  const SlotBehind before = sequence.state_before.value();
  sequence.state_before.reset();
  cache_.release_slot(std::exchange(sequence.state, before.slot).value());
  sequence.again = sequence.computed - before.tokens;
  sequence.computed = before.tokens;
}

size_t SequencePages::stretch_end(const Sequence& sequence) const {
  if (sequence.computed < sequence.prompt) return sequence.prompt;
  return next_checkpoint(sequence).value_or(sequence.tokens.size());
}

// The end, in tokens, of the next page to be computed behind which a checkpoint is wanted.
std::optional<size_t> SequencePages::next_checkpoint(const Sequence& sequence) const {
  const size_t done = sequence.computed / rules_.page_tokens;
  const auto page = wanted_page(sequence, done, sequence.checkpoint);
  if (!page) return std::nullopt;
  return *page * rules_.page_tokens;
}

// The first page of those behind `done` behind which a checkpoint is wanted, where the last one is
// behind `last` pages.
std::optional<size_t> SequencePages::wanted_page(const Sequence& sequence, size_t done,
                                                 size_t last) const {
  if (!has_states() || rules_.shares_none) return std::nullopt;
  const bool in_prompt = sequence.computed < sequence.prompt || !rules_.share_generated;
  const size_t end = (in_prompt ? sequence.prompt : sequence.tokens.size()) / rules_.page_tokens;
  std::optional<size_t> next;
  const auto want = [&](size_t page, size_t pages_least) {
    if (page <= done || page > end || page < last + pages_least) return;
    next = std::min(next.value_or(page), page);
  };
  const auto want_within = [&](size_t page) {
    const size_t behind = page + kLeastPagesWithin;
    const bool is_near_fork = page < sequence.fork && sequence.fork < behind;
    if (page >= kFirstDistance && behind <= end && !is_near_fork) want(page, kLeastPagesWithin);
  };
  want(end, kLeastPages);
  want(sequence.fork, kLeastPages);
  for (size_t distance = kFirstDistance; distance < end; distance *= 2) {
    want_within(distance);
    want_within(end - distance);
  }
  return next;
}

void SequencePages::take_checkpoints(Sequence& sequence, size_t end) {
  const size_t first = sequence.computed / rules_.page_tokens;
  // No page becomes known behind one that has been forgotten.
  if (!has_states() || sequence.blocks.size() != first) return;
  KnownBlocks known = known_blocks(sequence, first);
  if (!known.goes_on) return;
  std::vector<size_t> wanted;  // of blocks without one
  size_t last = sequence.checkpoint;
  size_t walked = first;
  while (const auto page = wanted_page(sequence, std::max(first, last), last)) {
    if (*page * rules_.page_tokens > end) break;
    for (last = *page; walked < last; ++walked) step(known, sequence, walked);
    if (has_checkpoint(known.block)) {
      sequence.checkpoint = last;
    } else {
      wanted.push_back(last);
    }
  }
  // The last one goes first, as slots may be few: the next turn begins from the end of a prompt.
  for (const size_t page : wanted | std::views::reverse) {
    const auto slot = cache_.take_slot();
    if (!slot) break;
    sequence.new_checkpoints.insert(sequence.new_checkpoints.begin(),
                                    {.slot = *slot, .tokens = page * rules_.page_tokens});
  }
}

void SequencePages::keep_checkpoints(Sequence& sequence) {
  for (const SlotBehind& kept : sequence.new_checkpoints) {
    const size_t page = kept.tokens / rules_.page_tokens;
    const BlockId block = block_before(sequence, page);
    if (block != 0) sequence.checkpoint = std::max(sequence.checkpoint, page);
    if (block == 0 || cache_.checkpoint(block)) {
      cache_.release_slot(kept.slot);
      continue;
    }
    cache_.put_checkpoint(block, kept.slot);
    sequence.answer_checkpoint = 0;
  }
  sequence.new_checkpoints.clear();
}

// The known block that ends before `page`; 0: there is none.
BlockId SequencePages::block_before(const Sequence& sequence, size_t page) const {
  if (page == 0 || sequence.blocks.size() < page) return 0;
  const BlockId block = sequence.blocks[page - 1];
  return cache_.is_known(block) ? block : 0;
}

void SequencePages::keep_answer(Sequence& sequence) {
  const size_t end = sequence.computed;
  const size_t page = end / rules_.page_tokens;
  if (end % rules_.page_tokens != 0 || end <= sequence.prompt || sequence.state_before) return;
  const BlockId block = block_before(sequence, page);
  if (block == 0) return;
  if (!cache_.checkpoint(block)) {
    auto slot = cache_.move_checkpoint(sequence.answer_checkpoint, block);
    if (!slot) slot = cache_.add_checkpoint(block);
    if (!slot) return;
    copies_.push_back({sequence.state.value(), *slot});
    sequence.answer_checkpoint = is_doubled_distance(page) ? 0 : block;
  }
  sequence.checkpoint = page;
}

}  // namespace lockstep
