#include "engine/scheduler/scheduler.h"

#include <algorithm>

#include "engine/base/check.h"

namespace lockstep {

Scheduler::Scheduler(const SchedulerLimits& limits) : limits_(limits), pool_(limits.page_count) {
  CHECK(limits.sequence_count > 0 && limits.sequence_count <= limits.batch_tokens &&
            limits.sequence_count <= limits.logit_rows,
        "{} sequences do not fit into passes of {} tokens and {} rows of logits",
        limits.sequence_count, limits.batch_tokens, limits.logit_rows);
}

size_t Scheduler::pages_for(size_t tokens) const {
  return (tokens + limits_.page_tokens - 1) / limits_.page_tokens;
}

SequenceId Scheduler::add(size_t prompt_tokens, size_t most_tokens, bool all_logits) {
  CHECK(prompt_tokens > 0 && most_tokens >= prompt_tokens, "a prompt of {} tokens of {}",
        prompt_tokens, most_tokens);
  CHECK(pages_for(most_tokens) <= pool_.page_count(), "{} tokens never fit into {} pages",
        most_tokens, pool_.page_count());
  const SequenceId id = next_id_++;
  Sequence sequence;
  sequence.known = prompt_tokens;
  sequence.prompt = prompt_tokens;
  sequence.most = most_tokens;
  sequence.all_logits = all_logits;
  sequences_.emplace(id, std::move(sequence));
  waiting_.push_back(id);
  return id;
}

void Scheduler::admit() {
  while (!waiting_.empty() && running_.size() < limits_.sequence_count) {
    Sequence& sequence = sequences_.at(waiting_.front());
    const size_t pages = pages_for(sequence.most);
    if (!pool_.reserve(pages)) return;
    sequence.reserved = pages;
    running_.push_back(waiting_.front());
    waiting_.pop_front();
  }
}

void Scheduler::add_chunk(SequenceId id, Sequence& sequence, size_t count) {
  while (sequence.pages.size() < pages_for(sequence.computed + count)) {
    CHECK(sequence.reserved > 0, "sequence {} needs more pages than it was promised", id);
    --sequence.reserved;
    sequence.pages.push_back(pool_.take());
    schedule_.cleared_pages.push_back(sequence.pages.back());
  }
  schedule_.chunks.push_back({.sequence = id,
                              .begin = sequence.computed,
                              .count = count,
                              .first = sequence.computed == 0,
                              .sample = sequence.computed + count == sequence.known});
}

// Rows of logits that the next `count` tokens of a prompt ask for.
size_t Scheduler::rows_of(const Sequence& sequence, size_t count) {
  if (sequence.all_logits) return count;
  return sequence.computed + count == sequence.known ? 1 : 0;
}

// How many tokens of a prompt fit into what is left of a pass. Without a row for its last token a
// prompt stops short of it; one that wants all its logits leaves half of the rows to others.
size_t Scheduler::prompt_chunk(const Sequence& sequence, size_t tokens_left,
                               size_t rows_left) const {
  const size_t count = std::min(sequence.known - sequence.computed, tokens_left);
  if (!sequence.all_logits) return rows_of(sequence, count) <= rows_left ? count : count - 1;
  const size_t share = (limits_.logit_rows + 1) / 2;
  return std::min({count, rows_left, share});
}

const Schedule& Scheduler::next_batch() {
  CHECK(!pass_open_, "the last pass has not been computed");
  admit();
  schedule_.chunks.clear();
  schedule_.cleared_pages.clear();
  size_t tokens_left = limits_.batch_tokens;
  size_t rows_left = limits_.logit_rows;
  for (const SequenceId id : running_) {
    Sequence& sequence = sequences_.at(id);
    if (!sequence.generates() || sequence.known == sequence.computed) continue;
    add_chunk(id, sequence, sequence.known - sequence.computed);
    --tokens_left;
    --rows_left;
  }
  if (!schedule_.chunks.empty()) {
    tokens_left = std::min(tokens_left, limits_.mixed_prompt_tokens);
  }
  for (const SequenceId id : running_) {
    Sequence& sequence = sequences_.at(id);
    if (sequence.generates()) continue;
    const size_t count = prompt_chunk(sequence, tokens_left, rows_left);
    if (count == 0) continue;
    const size_t rows = rows_of(sequence, count);
    add_chunk(id, sequence, count);
    tokens_left -= count;
    rows_left -= rows;
  }
  pass_open_ = !schedule_.chunks.empty();
  return schedule_;
}

void Scheduler::computed() {
  CHECK(pass_open_, "no pass is open");
  pass_open_ = false;
  for (const Chunk& chunk : schedule_.chunks) {
    sequences_.at(chunk.sequence).computed += chunk.count;
  }
}

void Scheduler::append_token(SequenceId id) {
  Sequence& sequence = sequences_.at(id);
  CHECK(sequence.known == sequence.computed && sequence.known < sequence.most,
        "sequence {} has {} known tokens, {} computed, {} at most", id, sequence.known,
        sequence.computed, sequence.most);
  ++sequence.known;
}

void Scheduler::finish(SequenceId id) {
  CHECK(!pass_open_, "sequence {} is finished in the middle of a pass", id);
  const auto found = sequences_.find(id);
  CHECK(found != sequences_.end(), "there is no sequence {}", id);
  for (const uint32_t page : found->second.pages) pool_.give_back(page);
  pool_.cancel_reservation(found->second.reserved);
  sequences_.erase(found);
  std::erase(waiting_, id);
  std::erase(running_, id);
}

std::span<const uint32_t> Scheduler::pages(SequenceId sequence) const {
  return sequences_.at(sequence).pages;
}

}  // namespace lockstep
