#include "tests/engine/scheduler/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <limits>

#include "engine/scheduler/scheduler.h"

namespace lockstep {
namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

}  // namespace

uint64_t Simulation::mixed(uint64_t value) {
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

Simulation::Simulation(uint64_t seed) : random_(seed) {
  limits_.page_tokens = 1 + pick(6);
  if (chance(2)) {
    for (size_t groups = pick(3); groups > 0; --groups) limits_.windows.push_back(any_window());
    if (chance(3)) limits_.windows.front() = any_window();
  }
  ahead_ = chance(2);
  is_calm_ = ahead_ && chance(4);
  limits_.page_count = limits_.windows.size() + pick(30) + (is_calm_ ? 60 : 0);
  limits_.sequence_count = 1 + pick(6) + (is_calm_ ? 3 : 0);
  limits_.batch_tokens = limits_.sequence_count + pick(24);
  limits_.logit_rows = limits_.sequence_count + pick(6);
  limits_.share_generated = chance(2);
  if (!limits_.share_generated && chance(2)) limits_.short_prompt = limits_.page_tokens - 1;
  limits_.patience_seconds = static_cast<double>(1 + pick(60));
  limits_.cache_secret = {random_(), random_()};
  limits_.unit_keys = 1 + pick(8);
  limits_.token_units_max = 1 + pick(12);
  if (chance(2)) limits_.attention_units = 1 + pick(60);
  if (chance(2)) {
    limits_.targets = {1 + static_cast<double>(pick(20)), 0.1 + static_cast<double>(pick(5))};
  }
  if (!is_calm_ && chance(2))
    limits_.state_slots = limits_.sequence_count + pick(chance(2) ? 3 : 12);
  if (is_calm_ || chance(2)) limits_.draft_tokens = is_calm_ ? 0 : pick(7);
  states_.resize(limits_.state_slots);
  // Lives with states are few, and with them those that a store gives one back.
  const bool has_store = limits_.state_slots > 0 ? !chance(4) : chance(2);
  if (has_store) limits_.page_store = &store_.emplace(*this);
  limits_.cache_events = &events_;
  scheduler_.emplace(limits_);
  allowance_ = {limits_.batch_tokens, limits_.batch_tokens};
  cells_.resize(limits_.page_count * limits_.page_tokens, kCleared);
  for (size_t page = 0; page < limits_.page_count; ++page) contents_.push_back(page);
  rests_on_.resize(limits_.page_count);
  // Windows may let them be of any length.
  const size_t longest = limits_.page_count * limits_.page_tokens;
  while (capacity_ < longest && scheduler_->most_pages(capacity_ + 1) <= limits_.page_count) {
    ++capacity_;
  }
  if (is_calm_) capacity_ = std::min<size_t>(capacity_, 24);
  for (size_t prefix = 1 + pick(3); prefix > 0; --prefix) {
    prefixes_.push_back(some_tokens(1 + pick(capacity_)));
  }
}

AttentionWindow Simulation::any_window() {
  AttentionWindow window{.tokens = 1 + pick(20)};
  if (chance(3)) window.section = 1 + pick(20);
  if (chance(2) && window.section != 0) window.tokens = 0;
  return window;
}

size_t Simulation::pick(size_t below) {
  return std::uniform_int_distribution<size_t>(0, below - 1)(random_);
}

std::vector<int32_t> Simulation::some_tokens(size_t count) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(pick(3));
  return tokens;
}

void Simulation::run() {
  size_t to_add = 1 + pick(is_calm_ ? limits_.sequence_count : 24);
  while (to_add > 0 || !live_.empty()) {
    for (size_t arrivals = pick(3); arrivals > 0 && to_add > 0; --arrivals, --to_add) add();
    if (!live_.empty() && chance(15))
      end(std::next(live_.begin(), static_cast<ptrdiff_t>(pick(live_.size())))->first);
    end_overdue();
    if (chance(40)) {
      allowance_.alone = 1 + pick(limits_.batch_tokens);
      allowance_.beside_streams = 1 + pick(allowance_.alone);
      const bool limited = chance(2);
      allowance_.work_alone = limited ? static_cast<double>(pick(30)) : kUnlimited;
      allowance_.work_beside_streams = limited ? allowance_.work_alone / 2 : kUnlimited;
      scheduler_->limit_prompt_tokens(allowance_);
    }
    propose();
    for (size_t saves = pick(1 + limits_.page_count); saves > 0; --saves) {
      scheduler_->save_page(/*all=*/chance(2));
    }
    pass();
    now_ += static_cast<double>(pick(3));
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_TRUE(scheduler_->idle());
  EXPECT_EQ(scheduler_->running_count() + scheduler_->waiting_count(), 0U);
  EXPECT_EQ(scheduler_->cache().pool().held_count(), 0U);
  EXPECT_EQ(scheduler_->slots().pool().held_count(), 0U);
  EXPECT_EQ(scheduler_->cache().available_count(), limits_.page_count);
  EXPECT_EQ(ended_, added_);
}

void Simulation::add() {
  Life life;
  NewSequence& asked = life.asked;
  const std::vector<int32_t>& prefix = prefixes_[pick(prefixes_.size())];
  asked.prompt.assign(prefix.begin(),
                      prefix.begin() + static_cast<std::ptrdiff_t>(1 + pick(prefix.size())));
  const auto tail = some_tokens(pick(1 + capacity_ - asked.prompt.size()));
  asked.prompt.insert(asked.prompt.end(), tail.begin(), tail.end());
  asked.most_tokens = asked.prompt.size() + pick(1 + capacity_ - asked.prompt.size());
  if (chance(3)) {
    asked.wanted = std::array{Wanted::kAllLogits, Wanted::kLastHidden, Wanted::kAllHidden}[pick(3)];
  }
  const bool hidden = asked.wanted == Wanted::kLastHidden || asked.wanted == Wanted::kAllHidden;
  if (hidden) asked.most_tokens = asked.prompt.size();
  asked.tenant = std::string(1, static_cast<char>('a' + pick(3)));
  asked.scope.owner = chance(2) ? asked.tenant : "";  // with a key, or without
  if (chance(4)) asked.scope.salt = "salt";
  asked.priority = static_cast<int32_t>(pick(3)) - 1;
  if (chance(6)) asked.deadline = now_ + static_cast<double>(pick(80));
  life.tokens = asked.prompt;
  life.arrived = now_;
  const SequenceId id = scheduler_->add(asked, now_);
  EXPECT_TRUE(live_.emplace(id, std::move(life)).second);
  ++added_;
}

void Simulation::end(SequenceId id) {
  scheduler_->finish(id);
  live_.erase(id);
  ++ended_;
}

void Simulation::end_overdue() {
  std::set<SequenceId> late;
  for (const auto& [id, life] : live_) {
    if (life.asked.deadline <= now_) late.insert(id);
  }
  const auto told = scheduler_->overdue(now_);
  EXPECT_EQ(std::set<SequenceId>(told.begin(), told.end()), late);
  for (const SequenceId id : late) end(id);
  overdue_ += late.size();
}

void Simulation::propose() {
  for (const auto& [id, life] : live_) {
    const size_t most = scheduler_->draft_tokens_most(id);
    EXPECT_LE(most, limits_.draft_tokens.value_or(kDraftTokensMost));
    const size_t border =
        (life.tokens.size() + limits_.page_tokens - 1) / limits_.page_tokens * limits_.page_tokens;
    EXPECT_LE(most, limits_.state_slots > 0 ? border - life.tokens.size() : most);
    if (most > 0 && !chance(3)) scheduler_->propose(id, some_tokens(1 + pick(most)));
  }
}

void Simulation::pass() {
  if (store_) store_->begin_pass();
  if (promised_ && (!scheduler_->has_promised() || chance(10))) withdraw();
  const Schedule schedule = scheduler_->next_batch(now_);
  if (schedule.chunks.empty()) {
    EXPECT_TRUE(live_.empty() || (store_ && store_->has_coming()));
    waits_ += live_.empty() ? 0 : 1;
    return;
  }
  check_promises(schedule);
  if (promised_) {
    check_kept(schedule);
  } else {
    check_pages();
    check_slots();
    copy_states(schedule.state_copies);
    clear(schedule.cleared_pages);
    for (const Chunk& chunk : schedule.chunks) {
      check_chunk(chunk);
      if (::testing::Test::HasFailure()) return;
      compute(chunk);
    }
  }
  if (ahead_ && !chance(4)) ask_for_promise(schedule);
  scheduler_->computed();
  check_pages();
  check_slots();
  told_.read(events_, limits_.page_tokens);
  EXPECT_EQ(told_.count(), scheduler_->cache().block_count());
  for (const Chunk& chunk : schedule.chunks) after(chunk);
  if (promised_) compute_promised();
  if (!chance(4)) scheduler_->add_pass_seconds(static_cast<double>(pick(300)) / 100);
}

void Simulation::clear(std::span<const uint32_t> pages) {
  for (const uint32_t page : pages) {
    std::fill_n(cells_.begin() + static_cast<std::ptrdiff_t>(page * limits_.page_tokens),
                limits_.page_tokens, kCleared);
    contents_[page] = rests_on_.size();
    rests_on_.emplace_back();
  }
}

// The pass as a whole.
void Simulation::check_promises(const Schedule& schedule) {
  size_t tokens = 0;
  size_t prompt_tokens = 0;
  bool has_streams = false;
  size_t rows = 0;
  size_t units = 0;  // of attention to generated tokens
  bool is_again = false;
  double work = 0;
  double work_most = 0;
  std::set<SequenceId> moved;
  bool prompts_begun = false;
  for (const Chunk& chunk : schedule.chunks) {
    if (chunk.ended) continue;
    ASSERT_TRUE(live_.contains(chunk.sequence));
    EXPECT_TRUE(moved.insert(chunk.sequence).second) << "twice in a pass";
    EXPECT_FALSE(chunk.generated && prompts_begun) << "generated tokens come first";
    prompts_begun = prompts_begun || !chunk.generated;
    tokens += chunk.count;
    prompt_tokens += chunk.generated ? 0 : chunk.count;
    const bool is_answer = chunk.begin >= live_.at(chunk.sequence).asked.prompt.size();
    has_streams = has_streams || (is_answer && chunk.sample && chunk.count - chunk.drafted == 1);
    rows += chunk.begin + chunk.count - chunk.logits_begin;
    if (chunk.generated) {
      is_again = is_again || chunk.count > 1;  // or drafted
      for (size_t token = 0; token < chunk.count; ++token) {
        const size_t begun = (chunk.begin + token) / limits_.unit_keys + 1;
        units += std::min(begun, limits_.token_units_max);
      }
    } else {
      work += prompt_work(chunk.begin, chunk.count);
      work_most = std::max(work_most, prompt_work(chunk.begin, chunk.count));
    }
  }
  if (is_again) {
    EXPECT_LE(units, limits_.attention_units);
  }
  // With targets, what prompts get beside streams is none of the allowance's.
  const bool is_beside = has_streams && !limits_.targets.any();
  // The first one computes some tokens, whatever they cost.
  EXPECT_LE(work - work_most, is_beside ? allowance_.work_beside_streams : allowance_.work_alone);
  EXPECT_LE(tokens, limits_.batch_tokens);
  EXPECT_LE(prompt_tokens, is_beside ? allowance_.beside_streams : allowance_.alone);
  EXPECT_LE(rows, limits_.logit_rows);
  EXPECT_LE(scheduler_->running_count(), limits_.sequence_count);
  EXPECT_EQ(scheduler_->running_count() + scheduler_->waiting_count(), live_.size());
  // Nobody starves: the one that came first moves in every pass, once its patience is over.
  const auto& [eldest, life] = *live_.begin();
  if (now_ - life.arrived >= limits_.patience_seconds) {
    EXPECT_TRUE(moved.contains(eldest)) << "sequence " << eldest << " starves";
  }
}

// Checks who holds which pages. Their contents show whether shared pages are the right ones.
void Simulation::check_pages() {
  std::map<uint32_t, uint32_t> holders;
  const PrefixCache& cache = scheduler_->cache();
  for (const auto& [id, life] : live_) {
    const size_t drafted = scheduler_->drafts(id).size();
    std::set<uint32_t> own;
    for (const uint32_t page : held_pages(id)) {
      ASSERT_LT(page, limits_.page_count);
      EXPECT_TRUE(own.insert(page).second) << "page " << page << " twice in a sequence";
      ++holders[page];
    }
    const size_t promised = promised_ ? 1 : 0;
    EXPECT_LE(own.size(), scheduler_->most_pages(life.tokens.size() + drafted + promised));
    for (const PageTable& table : scheduler_->tables(id)) {
      const auto held = table.held();
      EXPECT_EQ(table.pages.size(), scheduler_->tables(id).front().pages.size());
      for (size_t index = 1; index < held.size(); ++index) {
        EXPECT_TRUE(cache.knows(held[index - 1]) || !cache.knows(held[index]))
            << "page " << held[index] << " is kept and can never be found";
      }
    }
  }
  size_t idle = 0;
  for (uint32_t page = 0; page < limits_.page_count; ++page) {
    const auto held = holders.find(page);
    EXPECT_EQ(cache.pool().holders(page), held == holders.end() ? 0 : held->second);
    // Those that a discarded sequence had shared with others may be theirs, and unknown.
    EXPECT_TRUE(held == holders.end() || held->second == 1 || cache.knows(page) || discarded_ > 0)
        << "page " << page << " is shared and not known";
    idle += cache.is_idle(page) ? 1 : 0;
  }
  EXPECT_EQ(cache.pool().held_count(), holders.size());
  EXPECT_EQ(cache.idle_count(), idle);
  EXPECT_EQ(cache.pool().free_count() + idle + holders.size(), limits_.page_count);
}

uint64_t Simulation::root_value(const Life& life) {
  const std::hash<std::string> hash;
  return mixed(hash(life.asked.scope.owner) * 31 + hash(life.asked.scope.salt));
}

uint64_t Simulation::content(const Life& life, uint64_t before, size_t position) const {
  const size_t prompt = life.asked.prompt.size();
  const bool generated =
      !limits_.share_generated && (position >= prompt || prompt <= limits_.short_prompt);
  return mixed(before + static_cast<uint64_t>(life.tokens[position]) * 2 + (generated ? 1 : 0));
}

std::vector<uint32_t> Simulation::held_pages(SequenceId id) const {
  std::vector<uint32_t> pages;
  for (const PageTable& table : scheduler_->tables(id)) {
    pages.insert(pages.end(), table.held().begin(), table.held().end());
  }
  return pages;
}

uint64_t& Simulation::cell(SequenceId id, size_t group, size_t position) {
  const PageTable& table = scheduler_->tables(id)[group];
  const size_t index = position / limits_.page_tokens;
  EXPECT_GE(index, table.given_back) << "position " << position << " has been given back";
  const uint32_t page = table.pages[index];
  return cells_[page * limits_.page_tokens + position % limits_.page_tokens];
}

void Simulation::check_chunk(const Chunk& chunk) {
  const Life& life = live_.at(chunk.sequence);
  ASSERT_GT(chunk.count, chunk.drafted);
  const size_t end = chunk.begin + chunk.count - chunk.drafted;
  ASSERT_LE(end, life.tokens.size());
  ASSERT_EQ(chunk.drafted, scheduler_->drafts(chunk.sequence).size());
  EXPECT_TRUE(chunk.drafted == 0 || (chunk.generated && chunk.sample));
  const auto tables = scheduler_->tables(chunk.sequence);
  ASSERT_EQ(tables.size(), limits_.windows.size());
  ASSERT_GE(tables.front().pages.size() * limits_.page_tokens, end + chunk.drafted);
  EXPECT_EQ(chunk.first, !life.started);
  EXPECT_EQ(chunk.sample, end == life.tokens.size());
  const size_t prompt = life.asked.prompt.size();
  const bool is_answer = chunk.begin >= prompt;
  EXPECT_EQ(chunk.generated, is_answer || prompt <= limits_.short_prompt);
  EXPECT_TRUE(is_answer || end <= prompt) << "a chunk of both kinds";
  const Wanted wanted = life.asked.wanted;
  size_t logits = chunk.sample ? end - 1 : end;
  if (wanted == Wanted::kAllLogits && !is_answer) {
    logits = std::min(logits, std::max(chunk.begin, life.rows_done));
  }
  if (wanted == Wanted::kLastHidden || wanted == Wanted::kAllHidden) {
    EXPECT_FALSE(is_answer);
    logits = end;
  }
  EXPECT_EQ(chunk.logits_begin, logits);
  if ((wanted == Wanted::kAllLogits || wanted == Wanted::kAllHidden) && !is_answer) {
    EXPECT_LE(chunk.begin, life.rows_done) << "a prompt token's row is left out";
  }
}

// Looks at all that the chunk's tokens see and writes their own.
void Simulation::compute(const Chunk& chunk) {
  Life& life = live_.at(chunk.sequence);
  Life seen;  // with the drafted tokens
  seen.asked.prompt = life.asked.prompt;
  seen.tokens = life.tokens;
  const auto drafts = scheduler_->drafts(chunk.sequence);
  if (chunk.drafted > 0) seen.tokens.insert(seen.tokens.end(), drafts.begin(), drafts.end());
  uint64_t value = root_value(life);
  const size_t end = chunk.begin + chunk.count;
  uint64_t before = value;  // at the chunk's beginning
  auto kept = scheduler_->new_checkpoints(chunk.sequence);
  std::vector<uint64_t> kept_values;
  for (size_t position = 0; position < end; ++position) {
    if (position == chunk.begin) before = value;
    value = content(seen, value, position);
    if (!kept.empty() && kept.front().tokens == position + 1) {
      EXPECT_GE(position, chunk.begin);
      kept_values.push_back(value);
      kept = kept.subspan(1);
    }
    for (size_t group = 0; group < limits_.windows.size(); ++group) {
      if (position < limits_.windows[group].first_seen(chunk.begin)) continue;
      uint64_t& there = cell(chunk.sequence, group, position);
      const uint64_t expected = mixed(value + group);
      if (position >= chunk.begin) {
        ASSERT_TRUE(there == kCleared || there == kRejected)
            << "position " << position << " is not of a cleared page";
        there = expected;
      } else {
        ASSERT_EQ(there, expected) << "position " << position << " of sequence " << chunk.sequence;
      }
    }
  }
  EXPECT_TRUE(kept.empty()) << "a checkpoint behind the chunk, or out of order";
  compute_state(chunk, before, value, kept_values);
  life.started = true;
  if (chunk.begin < life.asked.prompt.size()) life.rows_done = std::max(life.rows_done, end);
  note_contents(chunk, end - chunk.drafted);
}

// The contents of its pages rest on those of the pages before them, in all groups.
void Simulation::note_contents(const Chunk& chunk, size_t end) {
  Life& life = live_.at(chunk.sequence);
  for (const PageTable& table : scheduler_->tables(chunk.sequence)) {
    for (size_t index = table.given_back; index < table.pages.size(); ++index) {
      const ContentId content = contents_[table.pages[index]];
      if ((index + 1) * limits_.page_tokens <= end) life.used.insert(content);
      for (const PageTable& other : scheduler_->tables(chunk.sequence)) {
        if (index > other.given_back) rests_on_[content].insert(contents_[other.pages[index - 1]]);
      }
    }
  }
  if (chunk.logits_begin < end || life.asked.wanted == Wanted::kAllHidden) note_proof(chunk, life);
}

// Rows that are numbers speak for what the sequence's pages and its state rest on, but for pages
// that are still to be filled.
void Simulation::note_proof(const Chunk& chunk, Life& life) {
  life.proven = life.used;
  const auto slot = scheduler_->state(chunk.sequence);
  if (!slot) return;
  std::set<ContentId> filling;
  for (const PageTable& table : scheduler_->tables(chunk.sequence)) {
    const size_t full = (chunk.begin + chunk.count) / limits_.page_tokens;
    for (size_t index = std::max(full, table.given_back); index < table.pages.size(); ++index) {
      filling.insert(contents_[table.pages[index]]);
    }
  }
  std::ranges::set_difference(states_[*slot].rests_on, filling,
                              std::inserter(life.proven, life.proven.end()));
}

// Token after token, as long as the drafted ones are what is sampled.
void Simulation::after(const Chunk& chunk) {
  if (!chunk.sample || chunk.ended) return;
  const SequenceId id = chunk.sequence;
  Life& life = live_.at(id);
  const auto span = scheduler_->drafts(id);
  const std::vector<int32_t> drafts(span.begin(), span.end());
  for (size_t place = 0;; ++place) {
    if (chance(60)) return discard(id);
    if (life.tokens.size() == life.asked.most_tokens || chance(12)) {
      EXPECT_LE(scheduler_->cached_tokens(id), life.asked.prompt.size() - 1);
      return end(id);
    }
    const bool is_drafted = place < drafts.size() && chance(2);
    const int32_t token = is_drafted ? drafts[place] : static_cast<int32_t>(pick(3));
    const bool is_accepted = place < drafts.size() && token == drafts[place];
    if (!is_accepted) reject(chunk, place);
    life.tokens.push_back(token);
    EXPECT_EQ(scheduler_->append_token(id, token), is_accepted);
    if (!is_accepted) return;
    ++accepted_;
    note_contents(chunk, life.tokens.size());
  }
}

// The pass's values for the drafted tokens from `place` on are never to be seen; with states, those
// of all of its tokens, which are computed again.
void Simulation::reject(const Chunk& chunk, size_t place) {
  if (scheduler_->tables(chunk.sequence).empty()) return;  // another one was discarded
  rejected_ += chunk.drafted - place;
  const size_t end = chunk.begin + chunk.count;
  const bool is_whole = limits_.state_slots > 0 && place < chunk.drafted;
  if (is_whole) rejected_with_states_ += chunk.drafted - place;
  const size_t begin = is_whole ? chunk.begin : end - chunk.drafted + place;
  for (size_t position = begin; position < end; ++position) {
    for (size_t group = 0; group < limits_.windows.size(); ++group) {
      cell(chunk.sequence, group, position) = kRejected;
    }
  }
}

// Its logits were no numbers: any of its pages may be the reason, but for those over which another
// one has had logits that were.
void Simulation::discard(SequenceId id) {
  std::set<ContentId> proven;
  for (const auto& [other, life] : live_) {
    if (other != id) proven.insert(life.proven.begin(), life.proven.end());
  }
  const std::vector<uint32_t> pages = held_pages(id);
  std::set<ContentId> doubtful = live_.at(id).used;
  for (const uint32_t page : pages) doubtful.insert(contents_[page]);
  scheduler_->discard(id);
  for (const uint32_t page : pages) EXPECT_FALSE(scheduler_->cache().knows(page));
  if (store_) {
    EXPECT_FALSE(store_->holds_any(live_.at(id).used)) << "it can come back";
    for (const uint64_t value : border_values(live_.at(id))) {
      EXPECT_FALSE(store_->holds_state(value)) << "its state can come back";
    }
  }
  spoil(doubtful, proven);
  live_.erase(id);
  ++ended_;
  ++discarded_;
}

std::vector<uint64_t> Simulation::border_values(const Life& life) const {
  std::vector<uint64_t> values;
  uint64_t value = root_value(life);
  for (size_t position = 0; position < life.tokens.size(); ++position) {
    value = content(life, value, position);
    if ((position + 1) % limits_.page_tokens == 0) values.push_back(value);
  }
  return values;
}

// And what was computed from them.
void Simulation::spoil(const std::set<ContentId>& doubtful, const std::set<ContentId>& proven) {
  std::set<ContentId> spoiled;
  std::vector<ContentId> left(doubtful.begin(), doubtful.end());
  while (!left.empty()) {
    const ContentId content = left.back();
    left.pop_back();
    if (proven.contains(content) || !spoiled.insert(content).second) continue;
    for (ContentId other = 0; other < rests_on_.size(); ++other) {
      if (rests_on_[other].contains(content)) left.push_back(other);
    }
  }
  for (uint32_t page = 0; page < limits_.page_count; ++page) {
    if (!spoiled.contains(contents_[page])) continue;
    const auto begin = cells_.begin() + static_cast<std::ptrdiff_t>(page * limits_.page_tokens);
    std::fill_n(begin, limits_.page_tokens, kSpoiled);
  }
  // The scheduler does not know of pages that rest on these and that only the store has: the next
  // sequence that meets them is discarded as well.
  if (store_) store_->drop(spoiled);
  for (State& state : states_) {
    const auto is_spoiled = [&](ContentId content) { return spoiled.contains(content); };
    if (std::ranges::any_of(state.rests_on, is_spoiled)) state.value = kSpoiled;
  }
}

}  // namespace lockstep
