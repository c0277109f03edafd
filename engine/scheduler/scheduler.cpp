#include "engine/scheduler/scheduler.h"

#include <algorithm>
#include <functional>
#include <new>
#include <tuple>
#include <utility>

#include "engine/base/check.h"

namespace lockstep {

Scheduler::Scheduler(const SchedulerLimits& limits)
    : limits_(limits),
      pages_(limits.page_count, limits.windows,
             {.page_tokens = limits.page_tokens,
              .pass_tokens = limits.batch_tokens,
              .share_generated = limits.share_generated,
              .shares_none = limits.whole_sequences,
              .state_slots = limits.state_slots,
              .secret = limits.cache_secret,
              .store = limits.page_store,
              .events = limits.cache_events}),
      prompts_most_{limits.batch_tokens, limits.batch_tokens} {
  CHECK(limits.sequence_count > 0 && limits.sequence_count <= limits.batch_tokens &&
            limits.sequence_count <= limits.logit_rows,
        "{} sequences do not fit into passes of {} tokens and {} rows of logits",
        limits.sequence_count, limits.batch_tokens, limits.logit_rows);
  CHECK(limits.state_slots == 0 || limits.state_slots >= limits.sequence_count,
        "{} sequences have {} slots for their states", limits.sequence_count, limits.state_slots);
}

Sequence& Scheduler::at(SequenceId id) {
  const auto found = sequences_.find(id);
  CHECK(found != sequences_.end(), "there is no sequence {}", id);
  return found->second;
}

bool Scheduler::before(const Sequence& one, const Sequence& other) const {
  const auto rank = [&](const Sequence& sequence) {
    return std::tuple(sequence.id != senior_, sequence.place);
  };
  return rank(one) < rank(other);
}

SequenceId Scheduler::add(NewSequence added, double now) {
  CHECK(!added.prompt.empty() && added.most_tokens >= added.prompt.size(),
        "a prompt of {} tokens of {}", added.prompt.size(), added.most_tokens);
  CHECK(most_pages(added.most_tokens) <= cache().pool().page_count(),
        "{} tokens never fit into {} pages", added.most_tokens, cache().pool().page_count());
  const SequenceId id = next_id_++;
  Sequence& sequence = sequences_[id];
  sequence.id = id;
  sequence.place = {.priority = added.priority, .start = FairQueue::kNoStart, .id = id};
  sequence.arrived = now;
  sequence.deadline = added.deadline;
  sequence.prompt = added.prompt.size();
  sequence.most = added.most_tokens;
  sequence.wanted = added.wanted;
  sequence.tenant_name = std::move(added.tenant);
  sequence.scope = std::move(added.scope);
  sequence.tokens = std::move(added.prompt);
  sequence.acceptance(DraftSource::kModel) = model_acceptance_;
  try {
    enqueue(sequence);
  } catch (...) {
    if (sequence.tenant != nullptr) queue_.leave(sequence.tenant_name);
    deadlines_.erase({sequence.deadline, id});
    sequences_.erase(id);
    throw;
  }
  try {
    pages_.read_ahead(sequence);
  } catch (const std::bad_alloc&) {  // it is read when it is needed
    return id;
  }
  return id;
}

void Scheduler::enqueue(Sequence& sequence) {
  if (sequence.deadline != kNoDeadline) deadlines_.emplace(sequence.deadline, sequence.id);
  std::optional<double> floor;
  for (const Sequence* running : running_) {
    if (running->computed >= running->prompt) continue;
    floor = std::min(floor.value_or(running->place.start), running->place.start);
  }
  sequence.tenant = &queue_.enter(sequence.tenant_name, floor);
  queue_.add(*sequence.tenant, sequence.place);
}

std::vector<SequenceId> Scheduler::overdue(double now) const {
  std::vector<SequenceId> ids;
  for (const auto& [deadline, id] : deadlines_) {
    if (deadline > now) break;
    ids.push_back(id);
  }
  return ids;
}

const Schedule& Scheduler::next_batch(double now) {
  CHECK(!pass_open_, "the last pass has not been computed");
  if (!promised_.chunks.empty()) return keep_promise(now);
  schedule_.chunks.clear();
  schedule_.cleared_pages.clear();
  draft_waits_ = false;
  schedule_.state_copies.clear();
  now_ = now;
  choose_senior(now);
  admit();
  std::ranges::sort(running_, [&](auto* one, auto* other) { return before(*one, *other); });
  plan_chunks();
  take_pages();
  plan_drafts();
  take_draft_pages();
  collect_chunks();
  pass_open_ = !schedule_.chunks.empty();
  const bool is_reading = std::ranges::any_of(running_, &Sequence::awaits_store);
  CHECK(pass_open_ || idle() || is_reading, "{} sequences and nothing to compute",
        sequences_.size());
  return schedule_;
}

void Scheduler::choose_senior(double now) {
  senior_ = 0;
  if (sequences_.empty()) return;
  const Sequence& eldest = sequences_.begin()->second;
  if (now - eldest.arrived >= limits_.patience_seconds) senior_ = eldest.id;
}

std::pair<Sequence*, Sequence*> Scheduler::next_to_admit() {
  std::vector<Sequence*> waiting;
  if (senior_ != 0 && !at(senior_).running) waiting.push_back(&at(senior_));
  for (const FairQueue::Place& place : queue_.heads()) waiting.push_back(&at(place.id));
  if (waiting.empty()) return {nullptr, nullptr};
  if (running_.size() < limits_.sequence_count) return {waiting.front(), nullptr};
  for (Sequence* next : waiting) {
    if (Sequence* other = steps_aside_for(*next)) return {next, other};
  }
  return {nullptr, nullptr};
}

void Scheduler::admit() {
  while (true) {
    const auto [next, other] = next_to_admit();
    if (next == nullptr || !fits_cache(*next)) return;
    if (other != nullptr) stop_running(*other);
    start(*next);
  }
}

// The last in the order of those that have to make way, if there is any.
Sequence* Scheduler::steps_aside_for(const Sequence& next) {
  Sequence* last = nullptr;
  for (Sequence* running : running_) {
    if (running->id == senior_) continue;
    const bool worse = next.id == senior_ || next.place.priority < running->place.priority;
    const bool fairer = next.place.priority == running->place.priority &&
                        next.tenant->running + 2 <= running->tenant->running;
    if (!worse && !fairer) continue;
    if (last == nullptr || before(*last, *running)) last = running;
  }
  return last;
}

// Whether the prompt finds pages without taking any from those that go before it, and leaves them
// what their own prompts need, or one for the next tokens. All other pages are free or can be.
bool Scheduler::fits_cache(Sequence& next) {
  if (running_.empty() || next.id == senior_) return true;
  PageClaims claims(cache().pool().page_count());
  pages_.claim(next, claims);
  for (Sequence* other : running_) {
    if (other->id != senior_ && other->place.priority > next.place.priority) continue;
    pages_.claim(*other, claims);
    if (!pages_.has_places(*other, other->tokens.size())) continue;
    for (size_t group = 0; group < cache().group_count(); ++group) claims.add_own();
  }
  return claims.count() <= cache().pool().page_count();
}

void Scheduler::start(Sequence& sequence) {
  queue_.remove(*sequence.tenant, sequence.place);
  if (sequence.place.start == FairQueue::kNoStart) {
    const size_t found = pages_.match(sequence).size() * limits_.page_tokens;
    sequence.charged = static_cast<double>(sequence.prompt - std::min(sequence.prompt, found));
    sequence.place.start = queue_.admit(*sequence.tenant, sequence.charged);
    if (!sequence.wants_all()) counters_.prefix_query_tokens += sequence.prompt;
  }
  sequence.running = true;
  ++sequence.tenant->running;
  running_.push_back(&sequence);
}

// It waits again, and keeps its pages.
void Scheduler::stop_running(Sequence& sequence) {
  sequence.running = false;
  sequence.planned = 0;
  sequence.drafts.clear();
  --sequence.tenant->running;
  std::erase(running_, &sequence);
  queue_.add(*sequence.tenant, sequence.place);
}

void Scheduler::plan_chunks() {
  Budget left = {limits_.batch_tokens, limits_.logit_rows, limits_.attention_units};
  size_t streams = 0;
  in_flight_.clear();
  for (Sequence* sequence : running_) {
    if (!sequence->streams()) attach(*sequence);
    sequence->planned = sequence->streams() ? 1 : 0;
    if (sequence->planned == 0) continue;
    ++streams;
    --left.tokens;
    --left.rows;
    left.units -= std::min(left.units, attention_units(sequence->computed, 1));
  }
  plan_again(left);
  if (limits_.whole_sequences) {
    left.work = std::numeric_limits<double>::infinity();
  } else if (limits_.targets.any()) {
    take_turns();
    share_by_targets(left, streams);
  } else {
    const PromptAllowance& most = prompts_most_;
    left.tokens = std::min(left.tokens, streams > 0 ? most.beside_streams : most.alone);
    left.work = streams > 0 ? most.work_beside_streams : most.work_alone;
  }
  plan_prompts(left);
}

void Scheduler::attach(Sequence& sequence) {
  fetch(sequence);
  const size_t cached = sequence.cached;
  const size_t computed = sequence.computed;
  pages_.attach(sequence);
  if (sequence.state_source && sequence.computed > computed) ++counters_.state_hits;
  counters_.prefix_hit_tokens += sequence.cached - cached;
  if (sequence.uncached == 0) sequence.uncached = sequence.prompt - sequence.cached;
  charge(sequence, 0, 0);
}

// A sequence waits for what is being read as long as some of it comes in time.
void Scheduler::fetch(Sequence& sequence) {
  const auto [tokens, has_advanced, is_coming] = pages_.fetch(sequence);
  if (tokens > 0) {
    counters_.stored_tokens += tokens;
    counters_.stored_seconds += cost_.prompt_seconds(prompt_work(sequence.computed, tokens));
  }
  const bool begins = sequence.store_deadline == kNoDeadline || tokens > 0 || has_advanced;
  if (is_coming && begins) sequence.store_deadline = now_ + kStorePatienceSeconds;
  sequence.awaits_store = is_coming && now_ < sequence.store_deadline && sequence.id != senior_;
}

// Puts each tenant's prompts into its places in the order in which they are due.
void Scheduler::take_turns() {
  std::map<std::tuple<bool, int32_t, FairQueue::Tenant*>, std::vector<Sequence*>> turns;
  const auto turns_of = [&](const Sequence& one) -> std::vector<Sequence*>& {
    return turns[{one.id == senior_, one.place.priority, one.tenant}];
  };
  for (Sequence* one : running_) {
    if (!one->streams()) turns_of(*one).push_back(one);
  }
  for (auto& [key, own] : turns) {
    std::ranges::sort(own, std::greater(),
                      [&](const Sequence* one) { return std::pair(due(*one), one->id); });
  }
  for (Sequence*& one : running_) {
    if (one->streams()) continue;
    std::vector<Sequence*>& own = turns_of(*one);
    one = own.back();
    own.pop_back();
  }
}

// A prompt is due the later, the longer it takes by itself. What it finds while others compute it
// makes it no shorter: it would overtake them, and compute what they had begun.
double Scheduler::due(const Sequence& sequence) const {
  const double work = prompt_work(sequence.prompt - sequence.uncached, sequence.uncached);
  return sequence.arrived + kOvertaking * cost_.prompt_seconds(work);
}

// Only prompts of at least the streams' best priority ask for a share of the pass.
void Scheduler::share_by_targets(Budget& left, size_t streams) const {
  int32_t priority = std::numeric_limits<int32_t>::max();  // the best of the streams
  for (const Sequence* one : running_) {
    if (one->streams()) priority = std::min(priority, one->place.priority);
  }
  std::vector<double> waiting;
  for (const Sequence* one : running_) {
    if (one->streams() || one->place.priority > priority) continue;
    waiting.push_back(prompt_work(one->computed, one->tokens.size() - one->computed));
  }
  const PromptAllowance& most = prompts_most_;
  left.work = std::min(most.work_alone, limits_.targets.prompt_work(cost_, streams, waiting));
  // Tokens that were generated and are computed again have no work of their own.
  const auto tokens = static_cast<size_t>(left.work);
  left.tokens = std::min({left.tokens, most.alone, std::max(kPromptChunkLeast, tokens)});
}

void Scheduler::plan_prompts(Budget left) {
  const auto plan = [&](Sequence& sequence, bool is_first) {
    if (pages_.awaits(sequence, in_flight_)) return;
    const size_t count = fitting_tokens(sequence, left, is_first);
    if (count == 0) return;
    const size_t begin = sequence.computed;
    const size_t end = begin + count;
    sequence.planned = count;
    left.tokens -= count;
    left.rows -= end - logits_begin(sequence, end);
    if (begin < sequence.prompt) left.work -= std::min(left.work, prompt_work(begin, count));
    if (goes_as_generated(sequence)) {
      left.units -= std::min(left.units, attention_units(begin, count));
    }
    pages_.add_awaited_keys(sequence, end, in_flight_);
  };
  std::vector<Sequence*> prompts;
  std::ranges::copy_if(running_, std::back_inserter(prompts), [](const Sequence* sequence) {
    return !sequence->streams() && !sequence->awaits_store;
  });
  if (prompts.empty()) return;
  Sequence& head = *prompts.front();
  // All of its known tokens: those after the border between prompted and generated ones, too.
  const auto known = [](const Sequence* one) { return one->tokens.size() - one->computed; };
  const auto work = [&](const Sequence* one) { return prompt_work(one->computed, known(one)); };
  const bool ends = known(&head) <= left.tokens && work(&head) <= left.work;
  if (!ends && head.id != senior_) {
    std::vector<Sequence*> others(prompts.begin() + 1, prompts.end());
    std::ranges::sort(others, {}, [&](auto* one) { return std::pair(known(one), one->id); });
    const size_t kept = left.tokens - left.tokens / 2;
    const double work_kept = left.work / 2;
    for (Sequence* other : others) {
      const bool equal =
          other->place.priority == head.place.priority && other->wanted != Wanted::kAllLogits;
      const bool fits = known(other) + kept <= left.tokens && work(other) + work_kept <= left.work;
      if (equal && fits && !fills_next_page(*other, head)) plan(*other, false);
    }
  }
  for (Sequence* sequence : prompts) {
    if (sequence->planned == 0 && left.tokens > 0) plan(*sequence, sequence == &head);
  }
}

// Whether `head` would wait for a page of `other`, which goes after it and may get none to fill.
bool Scheduler::fills_next_page(Sequence& other, Sequence& head) const {
  std::vector<PrefixKey> filled;
  pages_.add_awaited_keys(other, other.tokens.size(), filled);
  return pages_.awaits(head, filled);
}

size_t Scheduler::attention_units(size_t begin, size_t count) const {
  size_t units = 0;
  for (size_t position = begin; position < begin + count; ++position) {
    units += std::min(position / limits_.unit_keys + 1, limits_.token_units_max);
  }
  return units;
}

// How many tokens fit into what is left of a pass; some of the first's do. Without a row for its
// last token a sequence stops short of it; one that wants all its logits leaves half of the rows to
// others.
size_t Scheduler::fitting_tokens(const Sequence& sequence, const Budget& left,
                                 bool is_first) const {
  const size_t rows_left = left.rows;
  if (limits_.whole_sequences) {
    const size_t all = sequence.tokens.size();
    return all <= left.tokens && all - logits_begin(sequence, all) <= rows_left ? all : 0;
  }
  size_t count = std::min(pages_.stretch_end(sequence) - sequence.computed, left.tokens);
  if (sequence.computed < sequence.prompt) {
    const size_t least = is_first ? std::min(count, kPromptChunkLeast) : 0;
    count = std::max(least, prompt_tokens_within(left.work, sequence.computed, count));
  }
  if (goes_as_generated(sequence)) {
    const size_t least = is_first ? std::min<size_t>(count, 1) : 0;
    size_t units = left.units;
    size_t fitting = 0;
    for (; fitting < count; ++fitting) {
      const size_t taken = attention_units(sequence.computed + fitting, 1);
      if (taken > units) break;
      units -= taken;
    }
    count = std::max(least, fitting);
  }
  const size_t end = sequence.computed + count;
  const size_t begin = logits_begin(sequence, end);
  const size_t share = sequence.wanted == Wanted::kAllLogits && begin < sequence.prompt
                           ? std::min(rows_left, (limits_.logit_rows + 1) / 2)
                           : rows_left;
  return end - begin <= share ? count : begin + share - sequence.computed;
}

// The first of the tokens up to `end` whose logits are wanted.
size_t Scheduler::logits_begin(const Sequence& sequence, size_t end) const {
  if (!sequence.wants_logits()) return end;
  const size_t known = sequence.tokens.size();
  const size_t last = end >= known ? known - 1 : end;
  if (!sequence.wants_all() || sequence.computed >= sequence.prompt) return last;
  return std::min(last, std::max(sequence.computed, sequence.rows_done));
}

void Scheduler::take_pages() {
  // By position: those behind may leave.
  for (size_t position = 0; position < running_.size(); ++position) {
    Sequence& sequence = *running_[position];
    if (sequence.planned > 0) take_state(sequence);
    while (!pages_.has_places(sequence, sequence.computed + sequence.planned)) {
      if (!pages_.extend(sequence, schedule_.cleared_pages) && !reclaim_page(position)) break;
    }
    const size_t capacity = sequence.page_count() * limits_.page_tokens - sequence.computed;
    const bool waits = limits_.whole_sequences && capacity < sequence.planned;
    sequence.planned = waits ? 0 : std::min(sequence.planned, capacity);
  }
}

// There is a slot for each that runs: where none is free, some that wait have kept theirs. One that
// is to begin from a checkpoint has none of its own, so what running ones hold is no more than they
// are.
void Scheduler::take_state(Sequence& sequence) {
  while (!pages_.take_state(sequence)) {
    Sequence* const last = last_waiting();
    CHECK(last != nullptr, "sequence {} runs, and there is no slot for its states", sequence.id);
    preempt(*last);
  }
}

// The last in the order of those that wait and hold memory; null: there is none.
Sequence* Scheduler::last_waiting() {
  Sequence* last = nullptr;
  for (auto& [id, sequence] : sequences_) {
    if (sequence.running || !sequence.holds_memory()) continue;
    if (last == nullptr || before(*last, sequence)) last = &sequence;
  }
  return last;
}

// The last in the order that holds pages gives them up: of those that wait, or else of those that
// run behind `position`. False if there is none.
bool Scheduler::reclaim_page(size_t position) {
  Sequence* last = last_waiting();
  for (size_t index = running_.size(); last == nullptr && --index > position;) {
    if (running_[index]->page_count() > 0) last = running_[index];
  }
  if (last == nullptr) return false;
  preempt(*last);
  return true;
}

void Scheduler::preempt(Sequence& sequence) {
  if (sequence.computed > 0) ++counters_.preemptions;
  pages_.release(sequence);
  if (sequence.running) stop_running(sequence);
}

void Scheduler::collect_chunks() {
  for (const bool generated : {true, false}) {
    for (Sequence* sequence : running_) {
      const size_t begin = sequence->computed;
      const size_t end = begin + sequence->planned;
      const size_t known = sequence->tokens.size();
      if (begin == end || goes_as_generated(*sequence) != generated) continue;
      if (begin < sequence->prompt) pages_.take_checkpoints(*sequence, end);
      schedule_.chunks.push_back({.sequence = sequence->id,
                                  .begin = begin,
                                  .count = end - begin,
                                  .logits_begin = logits_begin(*sequence, end),
                                  .first = !sequence->started,
                                  .sample = end >= known,
                                  .generated = generated,
                                  .drafted = end - std::min(end, known)});
      sequence->started = true;
    }
  }
  if (!schedule_.chunks.empty()) schedule_.state_copies = pages_.take_copies();
}

void Scheduler::computed() {
  CHECK(pass_open_, "no pass is open");
  pass_open_ = false;
  for (const Chunk& chunk : schedule_.chunks) {
    if (chunk.ended) continue;
    Sequence& sequence = at(chunk.sequence);
    const size_t end = chunk.begin + chunk.count - chunk.drafted;
    if (sequence.wants_all()) {
      sequence.rows_done = std::max(sequence.rows_done, std::min(end, sequence.prompt));
    }
    charge(sequence, std::max(chunk.begin, sequence.reached), end);
    sequence.computed = end;
    sequence.reached = std::max(sequence.reached, end);
    sequence.sampled = chunk.sample;
    const bool gives_rows = chunk.logits_begin < end || sequence.wanted == Wanted::kAllHidden;
    if (gives_rows) sequence.proven = end;
    sequence.again -= std::min(sequence.again, end - chunk.begin);
    if (!sequence.state_before) {  // otherwise when the draft is accepted
      pages_.publish(sequence, chunk.begin, end);
    }
    pages_.keep_checkpoints(sequence);
    if (chunk.begin >= sequence.prompt && chunk.sample) rest_drafts(sequence);
  }
  if (!pages_.has_states()) return;
  // Slots that new checkpoints have held during the pass may make way by now.
  for (const Chunk& chunk : schedule_.chunks) {
    if (!chunk.ended) pages_.keep_answer(at(chunk.sequence));
  }
}

void Scheduler::add_pass_seconds(double seconds) {
  CHECK(!pass_open_, "the last pass has not been computed");
  if (schedule_.chunks.empty()) return;
  PassLoad load;
  for (const Chunk& chunk : schedule_.chunks) {
    if (chunk.generated) {
      load.generated += chunk.count;
    } else {
      load.prompt_work += prompt_work(chunk.begin, chunk.count);
    }
  }
  cost_.add(load, seconds);
  if (load.prompt_work == 0) row_cost_.add(load.generated, seconds);
}

// The tokens [begin, end) were computed for the first time. Prompt tokens have been charged; once
// the prompt is done, those that were found in the cache meanwhile are given back.
void Scheduler::charge(Sequence& sequence, size_t begin, size_t end) {
  const size_t prompt_end = std::min(end, sequence.prompt);
  if (begin < prompt_end) {
    counters_.prompt_tokens += prompt_end - begin;
    sequence.charged -= static_cast<double>(prompt_end - begin);
    begin = prompt_end;
  }
  if (begin < end) sequence.tenant->tag += static_cast<double>(end - begin);
  if (std::max(end, sequence.reached) >= sequence.prompt) {
    sequence.tenant->tag -= std::exchange(sequence.charged, 0);
  }
}

void Scheduler::finish(SequenceId id) {
  forget(at(id));
}

void Scheduler::discard(SequenceId id) {
  Sequence& sequence = at(id);
  pages_.forget(sequence);
  for (auto& [other_id, other] : sequences_) {
    if (other_id == id) continue;
    // Logits over a page that were numbers speak for it: such a sequence goes on.
    const auto shared = std::ranges::mismatch(other.blocks, sequence.blocks).in1;
    const auto count = static_cast<size_t>(shared - other.blocks.begin());
    if (count <= other.proven / limits_.page_tokens) continue;
    pages_.release(other);
    break_promise(other_id);
    other.drafts.clear();  // what is not verified yet is computed again
    other.verified = 0;
  }
  forget(sequence);
}

void Scheduler::forget_prefixes() {
  CHECK(idle(), "{} sequences hold pages", sequences_.size());
  pages_.forget_all();
}

void Scheduler::reset() {
  running_.clear();
  in_flight_.clear();
  schedule_ = {};
  promised_ = {};
  deadlines_.clear();
  sequences_.clear();
  queue_.reset();
  pages_.reset();
  senior_ = 0;
  pass_open_ = false;
}

void Scheduler::forget(Sequence& sequence) {
  CHECK(!pass_open_, "sequence {} is ended in the middle of a pass", sequence.id);
  if (sequence.running) {
    --sequence.tenant->running;
    std::erase(running_, &sequence);
  } else {
    queue_.remove(*sequence.tenant, sequence.place);
  }
  sequence.tenant->tag -= sequence.charged;
  break_promise(sequence.id);
  deadlines_.erase({sequence.deadline, sequence.id});
  pages_.release(sequence);
  queue_.leave(sequence.tenant_name);
  sequences_.erase(sequence.id);
}

std::span<const PageTable> Scheduler::tables(SequenceId id) const {
  return sequences_.at(id).tables;
}

std::optional<uint32_t> Scheduler::state(SequenceId id) const {
  return sequences_.at(id).state;
}

}  // namespace lockstep
