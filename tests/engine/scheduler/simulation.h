// One random life of a scheduler, drawn from a seed: tenants, priorities, deadlines, cancellations,
// shared prefixes, few pages. After every pass all that the scheduler promises is checked, and a
// model of the KV cache says for every token that is seen whether it is the one that was meant.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/scheduler/scheduler.h"
#include "tests/engine/scheduler/told_blocks.h"

namespace lockstep {

class Simulation {
 public:
  explicit Simulation(uint64_t seed);

  // Lives to the end; failures are GoogleTest's.
  void run();

  uint64_t hit_tokens() const { return scheduler_->counters().prefix_hit_tokens; }
  uint64_t preemptions() const { return scheduler_->counters().preemptions; }
  uint64_t evictions() const { return scheduler_->cache().eviction_count(); }
  uint64_t overdue() const { return overdue_; }
  uint64_t discarded() const { return discarded_; }
  // Checkpoints of states that were gone on from, and that had made way.
  uint64_t state_hits() const { return scheduler_->counters().state_hits; }
  uint64_t new_checkpoints() const { return new_checkpoints_; }
  uint64_t checkpoint_evictions() const { return scheduler_->slots().eviction_count(); }
  // Drafted tokens.
  uint64_t accepted() const { return accepted_; }
  uint64_t rejected() const { return rejected_; }
  uint64_t rejected_with_states() const { return rejected_with_states_; }
  // Tokens that came back from the page store, and passes that had to wait for it.
  uint64_t stored_tokens() const { return scheduler_->counters().stored_tokens; }
  uint64_t waits() const { return waits_; }
  uint64_t loaded_states() const { return store_ ? store_->loaded_states() : 0; }
  // Passes that were promised and computed as they were, those of which a part of the sequences had
  // ended, and those that were withdrawn.
  uint64_t promises_kept() const { return promises_kept_; }
  uint64_t promises_broken() const { return promises_broken_; }
  uint64_t promises_withdrawn() const { return promises_withdrawn_; }

 private:
  // The contents of a page from when it is handed out until it is handed out again: a number that
  // is never used again.
  using ContentId = size_t;

  struct Life {
    NewSequence asked;
    std::vector<int32_t> tokens;
    double arrived = 0;
    size_t rows_done = 0;        // prompt tokens below have given their rows, where all are wanted
    std::set<ContentId> used;    // that its full pages have had
    std::set<ContentId> proven;  // of them when it last gave logits: those were numbers
    size_t sampled = 0;
    bool started = false;
  };

  // A slot's contents: a number that stands for the tokens that have left them, and the pages that
  // these looked at.
  struct State {
    uint64_t value = 0;
    std::set<ContentId> rests_on;
  };

  // Pages and states outside of the cache, which come when they like and may be lost.
  class Store final : public PageStore {
   public:
    explicit Store(Simulation& life) : life_(life) {}
    bool contains(const StoredKey& key) override { return pages_.contains(key); }
    Answer ask(const StoredKey& key) override;
    bool load(const StoredKey& key, uint32_t place) override;
    bool save(const StoredKey& key, uint32_t place, bool makes_way) override;
    void copy_states(std::span<const SlotCopy> copies) override { life_.copy_states(copies); }
    bool outlives_process() const override { return true; }
    void erase(const StoredKey& key) override { pages_.erase(key); }
    // Whether a page of these contents is there; then all that are of any spoiled ones go.
    bool holds_any(const std::set<ContentId>& contents) const;
    void drop(const std::set<ContentId>& contents);
    // Whether it has the state behind tokens that this number stands for.
    bool holds_state(uint64_t value) const;
    uint64_t loaded_states() const { return loaded_states_; }
    bool has_coming() const { return coming_; }
    void begin_pass() { coming_ = false; }

   private:
    struct Page {
      std::vector<uint64_t> cells;
      ContentId content = 0;
      State state = {};      // in place of these two
      size_t asks_left = 0;  // until it is there
    };
    void load_state(const Page& page, uint32_t slot);
    Page copy_page(uint32_t page) const;
    Page copy_state(uint32_t slot) const;

    Simulation& life_;
    std::map<StoredKey, Page> pages_;
    uint64_t loaded_states_ = 0;
    bool coming_ = false;
  };

  // Values of cells beside contents.
  static constexpr uint64_t kCleared = 0;
  static constexpr uint64_t kSpoiled = 1;
  static constexpr uint64_t kRejected = 2;

  static uint64_t mixed(uint64_t value);
  static uint64_t root_value(const Life& life);

  size_t pick(size_t below);
  AttentionWindow any_window();
  bool chance(size_t one_in) { return pick(one_in) == 0; }
  std::vector<int32_t> some_tokens(size_t count);
  void add();
  void end_overdue();
  void end(SequenceId id);
  void propose();
  void pass();
  void check_chunk(const Chunk& chunk);
  void check_promises(const Schedule& schedule);
  void check_pages();
  void check_slots();
  void clear(std::span<const uint32_t> pages);
  void copy_states(std::span<const SlotCopy> copies);
  void compute(const Chunk& chunk);
  // `kept`: what stands for the tokens before each of its new checkpoints.
  void compute_state(const Chunk& chunk, uint64_t before, uint64_t after,
                     std::span<const uint64_t> kept);
  void ask_for_promise(const Schedule& schedule);
  void compute_promised();
  bool write_promised(const Chunk& chunk);
  void withdraw();
  void check_kept(const Schedule& schedule);
  void after(const Chunk& chunk);
  void discard(SequenceId id);
  void spoil(const std::set<ContentId>& doubtful, const std::set<ContentId>& proven);
  // `end`: of the chunk's tokens that are known.
  void note_contents(const Chunk& chunk, size_t end);
  void note_proof(const Chunk& chunk, Life& life);
  void reject(const Chunk& chunk, size_t place);
  // The numbers that stand for its tokens up to each border of pages.
  std::vector<uint64_t> border_values(const Life& life) const;
  // A number that stands for the tokens up to `position`; `before` stands for those before it.
  uint64_t content(const Life& life, uint64_t before, size_t position) const;
  uint64_t& cell(SequenceId id, size_t group, size_t position);
  std::vector<uint32_t> held_pages(SequenceId id) const;  // of all groups

  std::mt19937_64 random_;
  SchedulerLimits limits_;
  PromptAllowance allowance_;
  std::optional<Store> store_;  // of some
  CacheEvents events_;
  ToldBlocks told_;  // of the cache
  std::optional<Scheduler> scheduler_;
  // A pass that is promised, with the pages that it was begun with.
  struct Promised {
    Schedule schedule;
    std::map<SequenceId, std::vector<PageTable>> tables;
  };
  std::optional<Promised> promised_;
  bool ahead_ = false;    // promises are asked for
  bool is_calm_ = false;  // and can often be made: few come, and there is space for all
  std::map<SequenceId, Life> live_;
  std::vector<std::vector<int32_t>> prefixes_;  // that prompts begin with
  std::vector<uint64_t> cells_;                 // by page and token in it
  std::vector<ContentId> contents_;             // by page
  std::vector<State> states_;                   // by slot
  std::vector<std::set<ContentId>> rests_on_;   // by content
  size_t capacity_ = 0;                         // the tokens of the longest sequence
  double now_ = 0;
  size_t added_ = 0;
  size_t ended_ = 0;
  uint64_t overdue_ = 0;
  uint64_t discarded_ = 0;
  uint64_t accepted_ = 0;
  uint64_t rejected_ = 0;
  uint64_t rejected_with_states_ = 0;
  uint64_t new_checkpoints_ = 0;
  uint64_t waits_ = 0;
  uint64_t promises_kept_ = 0;
  uint64_t promises_broken_ = 0;
  uint64_t promises_withdrawn_ = 0;
};

}  // namespace lockstep
