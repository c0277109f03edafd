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
  uint32_t sequence = 0;  // index into Batch::page_tables
};

struct Batch {
  // A sequence's tokens stand together, in order of position; a token sees those before it in its
  // sequence, whether they are in this batch or in the cache.
  std::vector<BatchToken> tokens;
  // The first so many tokens were generated, the others prompted: the profile may give them
  // different arithmetic.
  size_t generated_tokens = 0;
  std::vector<std::span<const uint32_t>> page_tables;  // pages of each sequence, in order
  std::vector<uint32_t> logit_tokens;  // indices of the tokens whose logits are wanted, ascending
  // Draws from the same tokens' logits, if that can be done where they are. As many, or none at
  // all.
  std::vector<LogitDrawRequest> draws;
  std::vector<uint32_t> cleared_pages;  // handed out since the last pass: zeroed before it

  void clear() {
    tokens.clear();
    generated_tokens = 0;
    page_tables.clear();
    logit_tokens.clear();
    draws.clear();
    cleared_pages.clear();
  }
};

}  // namespace lockstep
