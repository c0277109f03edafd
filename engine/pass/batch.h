// The tokens, of any number of sequences, that one pass through the plan computes. The engine's
// thread fills it between passes, the workers read it during one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/token_id.h"
#include "engine/sampling/logit_row.h"

namespace lockstep {

struct BatchToken {
  TokenId token = 0;
  uint32_t position = 0;  // in its sequence
  uint32_t sequence = 0;  // of the batch
  uint32_t segment = 0;   // EmbedIndex::kSegment
};

struct Batch {
  // A sequence's tokens stand together, in order of position; a token sees those before it in its
  // sequence, whether they are in this batch or in the cache. Where tokens see those behind them,
  // too, all of a sequence's are in this batch.
  std::vector<BatchToken> tokens;
  // [token][Graph::given_columns()]: the rows that the model's graph reads beside tokens. A row
  // belongs to its token: what is computed again is given again. Empty where it reads none.
  std::vector<float> given_rows;
  // The first so many tokens were generated, the others prompted: the profile may give them
  // different arithmetic.
  size_t generated_tokens = 0;
  // [sequence][group of the cache's layers]: the numbers of its pages, in order, all of a
  // sequence's tables equally long. Those behind a group's window are not looked up, and may be any
  // of the cache's.
  std::vector<std::span<const uint32_t>> page_tables;
  size_t group_count = 1;
  // [sequence]: the slot of its states, of each sequence another (steps look none up where the
  // model has no states). It holds what the pass with the sequence's token before has left there;
  // of a sequence that begins, anything.
  std::vector<uint32_t> state_slots;
  // States that are copied from slot to slot before anything else is done, in this order.
  struct StateCopy {
    uint32_t from = 0;
    uint32_t to = 0;
  };
  std::vector<StateCopy> state_copies;
  // States that are kept: what a sequence's is behind one of its tokens (an index, ascending) is
  // copied to a slot that is no sequence's of the batch, each to another, while the pass goes on.
  struct Checkpoint {
    uint32_t token = 0;
    uint32_t slot = 0;
  };
  std::vector<Checkpoint> checkpoints;
  std::vector<uint32_t> logit_tokens;  // indices of the tokens whose logits are wanted, ascending
  // Draws from the same tokens' logits, if that can be done where they are. As many, or none at
  // all.
  std::vector<LogitDrawRequest> draws;
  // Tokens of a pass that begins before the last one has ended: [token]: the row of that one's
  // logits whose pick the token is, in place of BatchToken::token. Empty for any other pass.
  std::vector<uint32_t> picked_rows;
  std::vector<uint32_t> cleared_pages;  // handed out since the last pass: zeroed before it

  size_t sequence_count() const { return page_tables.size() / group_count; }
  std::span<const uint32_t> pages(size_t sequence, size_t group) const {
    return page_tables[sequence * group_count + group];
  }

  // Empties it; the number of groups stays.
  void clear() {
    tokens.clear();
    given_rows.clear();
    generated_tokens = 0;
    page_tables.clear();
    state_slots.clear();
    state_copies.clear();
    checkpoints.clear();
    logit_tokens.clear();
    draws.clear();
    picked_rows.clear();
    cleared_pages.clear();
  }
};

}  // namespace lockstep
