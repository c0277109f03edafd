// The scheduler's part in passes that begin before the last tokens are known: which pass follows
// for sure, and what becomes of it when a sequence ends.
#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/scheduler/scheduler.h"

namespace lockstep {

// The open pass, whose tokens are not known yet, is of all that run, one token of each,
// and everybody has a place.
bool Scheduler::may_promise() const {
  if (limits_.whole_sequences || pages_.has_states() || draft_waits_) return false;
  if (queue_.waiting_count() > 0) return false;
  size_t streams = 0;
  for (const Chunk& chunk : schedule_.chunks) {
    if (chunk.ended) continue;
    ++streams;
    const Sequence& sequence = sequences_.at(chunk.sequence);
    const bool is_stream = chunk.begin >= sequence.prompt && chunk.sample && chunk.count == 1;
    const bool goes_on = sequence.wants_logits() && sequence.tokens.size() < sequence.most;
    if (!is_stream || !goes_on) return false;
  }
  return streams > 0 && streams == running_.size();
}

const Schedule* Scheduler::promise() {
  CHECK(pass_open_ && promised_.chunks.empty(), "a pass is promised behind one that is open");
  if (!may_promise()) return nullptr;
  size_t wanted_pages = 0;
  const auto has_place = [&](const Sequence& sequence) {
    return pages_.has_places(sequence, sequence.tokens.size() + 1);
  };
  for (const Sequence* sequence : running_) {
    if (!has_place(*sequence)) wanted_pages += cache().group_count();
  }
  if (wanted_pages > cache().available_count()) return nullptr;
  promised_.cleared_pages.clear();
  for (const Chunk& chunk : schedule_.chunks) {
    if (chunk.ended) continue;
    Sequence& sequence = at(chunk.sequence);
    if (!has_place(sequence)) pages_.extend(sequence, promised_.cleared_pages);
    const size_t next = sequence.tokens.size();
    promised_.chunks.push_back({.sequence = sequence.id,
                                .begin = next,
                                .count = 1,
                                .logits_begin = next,
                                .sample = true,
                                .generated = true});
  }
  return &promised_;
}

bool Scheduler::has_promised() const {
  return !std::ranges::all_of(promised_.chunks, &Chunk::ended);
}

void Scheduler::withdraw() {
  promised_.chunks.clear();
  promised_.cleared_pages.clear();
}

// Drafts come too late for it: they are proposed again before the next pass, which is not promised.
const Schedule& Scheduler::keep_promise(double now) {
  CHECK(has_promised(), "a pass is promised of sequences that have all ended");
  now_ = now;
  std::swap(schedule_, promised_);
  promised_.chunks.clear();
  promised_.cleared_pages.clear();
  for (const Chunk& chunk : schedule_.chunks) {
    if (chunk.ended) continue;
    Sequence& sequence = at(chunk.sequence);
    draft_waits_ = draft_waits_ || !sequence.drafts.empty();
    sequence.drafts.clear();
  }
  pass_open_ = true;
  return schedule_;
}

void Scheduler::break_promise(SequenceId id) {
  for (Chunk& chunk : promised_.chunks) chunk.ended = chunk.ended || chunk.sequence == id;
}

}  // namespace lockstep
