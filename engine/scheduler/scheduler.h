// Decides which tokens the next pass computes. Knows sequences as tokens and pages as numbers; has
// no thread and no clock (times are numbers that it is given), so that it can be simulated from a
// seed.
//
// The order. Of two sequences that one goes first whose priority is better, then the one with the
// earlier start (fair_queue.h), then the one that came first. Before all others goes the senior:
// the one that came first of all, once it has been here for `patience_seconds`. A sequence that
// runs and is first in this order moves in every pass and never waits: so every sequence ends.
//
// The rules:
//   - The first of those that wait is admitted when there is a place, and pages for its prompt. If
//     all places are taken, one that runs steps aside for the first that has a better priority, or,
//     among equals, whose tenant has at least two places less. It keeps its pages.
//   - A sequence that generates gets its token in every pass. What is left of the pass goes to
//     prompts in chunks, in order; a prompt that cannot end in this pass leaves half of that to
//     prompts that can. So it is for generated tokens that are computed again.
//   - With targets (latency_targets.h) the prompts' part of a pass follows from them and from the
//     times of passes, and a tenant's prompts swap places: short ones go first, unless a long one
//     came much earlier (kOvertaking). Other tenants keep their places.
//   - Where sequences have states, one that runs has a slot for them. One that has stepped aside
//     keeps its own until another needs it, and there is no checkpoint to take instead: then the
//     last in the order gives up its pages as well. Checkpoints are kept while a prompt is
//     computed; of generated tokens that are computed again, a chunk ends where one is wanted.
//   - Pages are taken as they are needed. When there is none, the last in the order gives up all of
//     its own and computes its tokens again later: as prompted or generated ones, what they were.
//   - Drafted tokens (docs/speculation.md) get what a pass has left: tokens, rows and pages. No
//     sequence waits, or gives up anything, for them. With states a copy is made before a draft,
//     for which a checkpoint may make way; if a token is rejected the copy is the state, and the
//     tokens known since are computed again beside the next ones.
//   - A page that another sequence has computed, or computes in this pass, is not computed again;
//     with states, one behind which a checkpoint is, or will be.
//   - A pass of streams alone can be promised before the last one's tokens are known. While it is
//     computed others wait, and drafts, for no more than that one pass.
//   - Pages that a store holds outside of the cache are loaded into it before a sequence computes
//     them. It waits while they are being read, but not for long, and the senior not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "engine/scheduler/draft_length.h"
#include "engine/scheduler/fair_queue.h"
#include "engine/scheduler/latency_targets.h"
#include "engine/scheduler/pass_cost.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/sequence_pages.h"

namespace lockstep {

// Prompts in smaller chunks would read the weights too often.
inline constexpr size_t kPromptChunkLeast = 32;
// Pages that are not read by then are computed.
inline constexpr double kStorePatienceSeconds = 5;

struct SchedulerLimits {
  size_t page_tokens = 64;
  size_t page_count = 0;
  std::vector<AttentionWindow> windows = {{}};  // of the groups of the cache's layers
  size_t sequence_count = 8;                    // running at once
  size_t batch_tokens = 512;                    // tokens of a pass
  size_t logit_rows = 64;                       // rows whose logits one pass may give
  // The units of attention to generated tokens that a pass has; beyond them it is slow. A token
  // takes one unit for each `unit_keys` begun, from its sequence's first token to itself, but
  // no more than `token_units_max`. What is computed again takes what streams leave.
  size_t attention_units = std::numeric_limits<size_t>::max();
  size_t unit_keys = 64;
  size_t token_units_max = std::numeric_limits<size_t>::max();
  bool share_generated = true;  // as in SequencePages::Rules
  // Prompts of so few tokens are computed as generated tokens are, less than a page: it is the
  // prompt's own length that decides, whatever of it is cached or is beside it. 0: none.
  size_t short_prompt = 0;
  // Tokens see those behind them: a sequence is computed as a whole, in one pass, and what is
  // computed of it is no other's. None generates, or has more tokens than a pass.
  bool whole_sequences = false;
  // Slots of states, at least sequence_count; 0: sequences have none. Those that no sequence needs
  // hold checkpoints, and states from before a draft.
  size_t state_slots = 0;
  // Drafted tokens of a sequence in a pass, at most kDraftTokensMost; none: as many as pay.
  std::optional<size_t> draft_tokens = {};
  double patience_seconds = 60;
  LatencyTargets targets = {};
  HashSecret cache_secret = {};
  PageStore* page_store = nullptr;      // outlives the scheduler; null: none
  CacheEvents* cache_events = nullptr;  // hear of the prefix cache; outlive the scheduler
};

// Prompt tokens of one pass at most; at least 1 each. And their cost (prompt_work()); but
// the first sequence gets kPromptChunkLeast of them. With targets, the limits of passes without
// streams hold for all passes.
struct PromptAllowance {
  size_t alone = 0;
  size_t beside_streams = 0;  // where others generate: what a running stream may be delayed by
  double work_alone = std::numeric_limits<double>::infinity();
  double work_beside_streams = std::numeric_limits<double>::infinity();
};

// A slice of one sequence that the next pass computes.
struct Chunk {
  SequenceId sequence = 0;
  size_t begin = 0;  // position of its first token
  size_t count = 0;
  size_t logits_begin = 0;  // logits are wanted from this position to the chunk's end; of a
                            // sequence that wants hidden rows, none
  bool first = false;       // the sequence's first chunk: it has left the queue
  bool sample = false;      // its last token is the last known: the next one is sampled, if any
  bool generated = false;   // its tokens are computed as generated ones, otherwise as prompted
  // Its last so many tokens are drafted, not known. With `sample` logits are wanted of the last
  // known token and of each drafted one.
  size_t drafted = 0;
  // Only in a promised pass: its sequence has ended since, or starts over. Nobody looks at what is
  // computed of it.
  bool ended = false;
};

struct Schedule {
  std::vector<Chunk> chunks;            // of generated tokens first
  std::vector<uint32_t> cleared_pages;  // handed out for this pass
  std::vector<SlotCopy> state_copies;   // to be made before the pass, in this order
};

// Since the start. Tokens that are computed again are not counted again.
struct SchedulerCounters {
  uint64_t prompt_tokens = 0;        // computed
  uint64_t prefix_query_tokens = 0;  // of prompts that were looked up in the cache
  uint64_t prefix_hit_tokens = 0;    // of them found there
  uint64_t preemptions = 0;          // that had computed something
  uint64_t state_hits = 0;           // sequences that went on from a checkpoint
  uint64_t stored_tokens = 0;        // that were loaded from the page store, not computed
  double stored_seconds = 0;         // that computing them would have taken, as far as is known
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);

  // Pages that a sequence takes at most while it grows to so many tokens.
  size_t most_pages(size_t tokens) const { return pages_.most_pages(tokens); }

  // Queues a sequence that comes at `now`; most_pages(most_tokens) must not exceed the pool. Throws
  // std::bad_alloc where memory is refused, and changes nothing then.
  SequenceId add(NewSequence added, double now);

  // Those whose deadline is over; they go on until they are finished.
  std::vector<SequenceId> overdue(double now) const;

  // The next pass; empty only when there is no sequence, or all wait for what the page store is
  // reading. Until computed() is called with it, no
  // other. `now` never goes back.
  const Schedule& next_batch(double now);
  // Between passes: copies a page into the page store that would be lost otherwise; with `all`, any
  // that is not there.
  SequencePages::Saved save_page(bool all) { return pages_.save_one(all); }
  // While a pass is open: the one that follows if each of its sequences gets a token and none ends
  // or comes, so that it can begin before those tokens are known. It has its pages from now on, and
  // next_batch() gives it, with the chunks of sequences marked that have ended by then, or start
  // over. Null where the pass is not of streams alone, without drafts or states, where somebody
  // waits, pages are missing, or a stream's last token is due. Valid until next_batch() or
  // withdraw().
  const Schedule* promise();
  // Takes the promise back, if there is one. The pages that were handed out for it
  // count as cleared.
  void withdraw();
  // Whether a pass is promised that has a chunk of a sequence that goes on.
  bool has_promised() const;
  // The pass has been computed.
  void computed();
  // The last pass took so long, from its next_batch() to where the next one may be called. With
  // targets, chunks stay as small as allowed until the first call. Without what drafts by a model
  // have taken.
  void add_pass_seconds(double seconds);

  // How many drafted tokens would pay in the next pass of a sequence; 0: none would, or it takes
  // none. As of the last pass, and without regard to other sequences' drafts.
  size_t draft_tokens_most(SequenceId sequence, DraftSource source = DraftSource::kDrafter) const;
  // Whether it pays that another model reads the sequence's text for so long before it drafts: an
  // answer is expected to go on for as many tokens as it has had.
  bool reading_pays(SequenceId sequence, double seconds) const;
  // How many of them pay where another model drafts for all of these sequences at once, by a pass
  // for each place of `pass_seconds`; 0: not known, as if it took no time.
  size_t shared_draft_tokens_most(std::span<const SequenceId> sequences, double pass_seconds) const;
  // Proposes drafted tokens for the next pass, no more than those; it computes the first of them,
  // as far as it has space. Not between next_batch and computed.
  void propose(SequenceId sequence, std::span<const int32_t> drafts,
               DraftSource source = DraftSource::kDrafter);
  // The drafted tokens of its chunk of the pass, of which none is appended yet.
  std::span<const int32_t> drafts(SequenceId sequence) const;

  // A token was sampled from the row of the last known one. First for a sequence whose chunk of the
  // last pass had `sample`, and then for as long as it returns true: the token is the next of the
  // chunk's drafted ones, so its own row is there and the one after it is to be sampled.
  bool append_token(SequenceId sequence, int32_t token);
  // Ends a sequence, wherever it is; its full pages stay in the prefix cache. Not between
  // next_batch and computed, nor are the next two.
  void finish(SequenceId sequence);
  // Ends a sequence whose logits or hidden states were no numbers: its pages are not found any
  // more, and sequences that hold one of them and have had no logits or states over it start over.
  void discard(SequenceId sequence);
  // Somebody else has written to the pages; only while idle.
  void forget_prefixes();
  // Removes every sequence and prefix; the counters go on. Takes no memory, and may be called at
  // any time, also after another method has thrown std::bad_alloc in the middle of a change.
  void reset();
  // From the next pass on; until then only batch_tokens are the limit.
  void limit_prompt_tokens(const PromptAllowance& most) { prompts_most_ = most; }

  // The sequence's page tables, by group. Those of an ended one are gone.
  std::span<const PageTable> tables(SequenceId sequence) const;
  // The slot of the sequence's states, of one that is part of a pass, in which they are once the
  // pass's copies have been made; none: it has no states.
  std::optional<uint32_t> state(SequenceId sequence) const;
  // For a sequence that is part of the open pass: the slots to which its states are copied while
  // its chunk is computed, each behind so many of its tokens, in order.
  std::span<const SlotBehind> new_checkpoints(SequenceId sequence) const {
    return sequences_.at(sequence).new_checkpoints;
  }
  // The number of prompt tokens that were found in the prefix cache.
  size_t cached_tokens(SequenceId sequence) const { return sequences_.at(sequence).cached; }

  size_t running_count() const { return running_.size(); }
  size_t waiting_count() const { return queue_.waiting_count(); }
  bool idle() const { return sequences_.empty(); }
  const PrefixCache& cache() const { return pages_.cache(); }
  const StateSlots& slots() const { return cache().slots(); }
  const SchedulerCounters& counters() const { return counters_; }

 private:
  void enqueue(Sequence& sequence);
  bool before(const Sequence& one, const Sequence& other) const;

  void choose_senior(double now);
  void admit();
  // The sequence to admit, and the one that makes way for it; the second is null while there are
  // places.
  std::pair<Sequence*, Sequence*> next_to_admit();
  Sequence* steps_aside_for(const Sequence& next);
  bool fits_cache(Sequence& next);
  void start(Sequence& sequence);
  void stop_running(Sequence& sequence);

  void plan_chunks();
  void attach(Sequence& sequence);
  void fetch(Sequence& sequence);
  // The budget that is left of a pass.
  struct Budget {
    size_t tokens = 0;
    size_t rows = 0;
    size_t units = 0;
    double work = 0;
  };
  void share_by_targets(Budget& left, size_t streams) const;
  void take_turns();
  double due(const Sequence& sequence) const;
  void plan_prompts(Budget left);
  size_t fitting_tokens(const Sequence& sequence, const Budget& left, bool is_first) const;
  // Whether the next token to be computed is computed as generated ones are.
  bool goes_as_generated(const Sequence& sequence) const {
    return sequence.computed >= sequence.prompt || sequence.prompt <= limits_.short_prompt;
  }
  // The units of generated tokens [begin, begin + count) of a sequence.
  size_t attention_units(size_t begin, size_t count) const;
  bool fills_next_page(Sequence& other, Sequence& head) const;
  void take_pages();
  void take_state(Sequence& sequence);
  Sequence* last_waiting();
  bool reclaim_page(size_t position);
  void preempt(Sequence& sequence);
  void collect_chunks();
  bool may_promise() const;
  const Schedule& keep_promise(double now);
  void break_promise(SequenceId id);

  size_t draft_rows_most() const;
  void plan_again(Budget& left);
  void plan_drafts();
  void take_draft_pages();
  bool verify_draft(Sequence& sequence);
  void rest_drafts(Sequence& sequence) const;
  size_t stream_count() const;

  size_t logits_begin(const Sequence& sequence, size_t end) const;
  void charge(Sequence& sequence, size_t begin, size_t end);
  void forget(Sequence& sequence);
  Sequence& at(SequenceId id);

  SchedulerLimits limits_;
  SequencePages pages_;
  FairQueue queue_;
  std::map<SequenceId, Sequence> sequences_;  // in the order in which they came
  std::set<std::pair<double, SequenceId>> deadlines_;
  std::vector<Sequence*> running_;    // in order, as of the last pass
  SequenceId senior_ = 0;             // 0: none
  std::vector<PrefixKey> in_flight_;  // of what others await of the pass being formed
  PromptAllowance prompts_most_;
  PassCost cost_;
  RowCost row_cost_;
  DraftAcceptance model_acceptance_;  // of all sequences' drafts by a model
  Schedule schedule_;
  Schedule promised_;         // the pass behind that one; no chunks: none is
  bool draft_waits_ = false;  // was proposed for a pass that had been promised
  SchedulerCounters counters_;
  bool pass_open_ = false;
  double now_ = 0;
  SequenceId next_id_ = 1;
};

}  // namespace lockstep
