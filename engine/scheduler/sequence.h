// A sequence as the scheduler knows it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/scheduler/draft_length.h"
#include "engine/scheduler/fair_queue.h"
#include "engine/scheduler/prefix_cache.h"

namespace lockstep {

inline constexpr double kNoDeadline = std::numeric_limits<double>::infinity();

// The purpose of a sequence. Passes give logits of few tokens, and hidden rows of all.
enum class Wanted : uint8_t {
  kLastLogits,  // of the last known token
  kAllLogits,   // of every prompt token, too
  kLastHidden,  // the hidden row of the prompt's last token; no logits
  kAllHidden,   // those of every prompt token; no logits
};

// A request to the scheduler.
struct NewSequence {
  std::vector<int32_t> prompt;  // at least one token
  size_t most_tokens = 0;       // that can ever be computed, at least as many as the prompt has
  Wanted wanted = Wanted::kLastLogits;
  std::string tenant;  // tenants share the passes fairly (fair_queue.h)
  CacheScope scope;
  int32_t priority = 0;           // lower goes first
  double deadline = kNoDeadline;  // on the clock whose times next_batch() is given
};

// A sequence's pages of one group, in order. Those behind the group's window have been given back;
// 0 stands in their places.
struct PageTable {
  std::vector<uint32_t> pages;
  size_t given_back = 0;  // the first so many

  std::span<const uint32_t> held() const { return std::span(pages).subspan(given_back); }
};

// A slot for the state behind so many tokens of a sequence.
struct SlotBehind {
  uint32_t slot = 0;
  size_t tokens = 0;
};

struct Sequence {
  SequenceId id = 0;
  std::string tenant_name;
  CacheScope scope;
  FairQueue::Tenant* tenant = nullptr;
  FairQueue::Place place;
  double arrived = 0;
  double deadline = kNoDeadline;
  size_t prompt = 0;
  size_t most = 0;
  Wanted wanted = Wanted::kLastLogits;

  std::vector<int32_t> tokens;    // known: prompt and sampled
  size_t computed = 0;            // of them in the cache
  size_t reached = 0;             // most that ever were: what lies before is computed again
  size_t rows_done = 0;           // with wants_all(): prompt tokens whose rows were given
  size_t proven = 0;              // before which the pages that are held now have given rows
  size_t cached = 0;              // prompt tokens that were found in the cache, the first time
  size_t uncached = 0;            // those that were not when it first looked; 0: it has not
  double charged = 0;             // to the tenant, for prompt tokens not computed yet
  std::vector<PageTable> tables;  // by group of the cache's layers; all equally long, or none
  std::optional<uint32_t> state;  // the slot of its states; none where it has none
  // The checkpoint, held, that its state is to be copied from: before it is computed next. It has
  // no slot of its own then.
  std::optional<uint32_t> state_source;
  // While a draft is computed and verified: the slot of the state from before, with which the
  // sequence goes on if a token is rejected.
  std::optional<SlotBehind> state_before;
  // The slots, held, in which the pass that is open leaves checkpoints of it; in order.
  std::vector<SlotBehind> new_checkpoints;
  size_t again = 0;             // computed again for that: so many tokens before the last known one
  std::vector<BlockId> blocks;  // of its first pages, as far as they are known
  std::vector<PrefixKey> keys;  // of the root and of its first full pages
  size_t checkpoint = 0;        // pages before the last one that it has found or made
  size_t fork = 0;              // pages before where known blocks without one were seen to end
  BlockId answer_checkpoint = 0;  // whose checkpoint moves on with the answer; 0: none

  size_t loaded = 0;                    // pages of its prefix that a store has given, at most
  bool awaits_store = false;            // what it needs next is being read
  double store_deadline = kNoDeadline;  // when it no longer waits for that; kNoDeadline: not yet
  bool running = false;
  bool started = false;  // has been part of a pass
  bool sampled = false;  // in the last pass: the next token is to be appended
  size_t planned = 0;    // tokens of the pass that is being formed, drafted ones included

  // Drafted tokens behind the known ones: those that are proposed, then those of the pass, until
  // they are verified.
  std::vector<int32_t> drafts;
  size_t verified = 0;                               // of them accepted: known by now
  DraftSource draft_source = DraftSource::kDrafter;  // theirs
  std::array<DraftAcceptance, kDraftSourceCount> acceptances;

  DraftAcceptance& acceptance(DraftSource source) {
    return acceptances[static_cast<size_t>(source)];
  }

  // Pages of tokens that it has places for.
  size_t page_count() const { return tables.empty() ? 0 : tables.front().pages.size(); }
  // Whether it has taken pages or a state.
  bool holds_memory() const { return page_count() > 0 || state || state_source; }
  // Every prompt token's row, of logits or hidden.
  bool wants_all() const { return wanted == Wanted::kAllLogits || wanted == Wanted::kAllHidden; }
  bool wants_logits() const {
    return wanted == Wanted::kLastLogits || wanted == Wanted::kAllLogits;
  }
  // One token that was generated is to be computed, and what a rejected draft has left to be
  // computed again.
  bool streams() const { return computed >= prompt && computed + again + 1 == tokens.size(); }
};

}  // namespace lockstep
