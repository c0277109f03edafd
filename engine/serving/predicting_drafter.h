// Drafts by a block of the model that predicts further tokens (docs/speculation.md). The block runs
// passes of its own between those of the model: first over tokens that became known, each with the
// model's hidden row of the token before, then over the tokens that it has drafted itself, with its
// own rows. Its KV cache is one for the caller's pages, which are as long as the model's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/base/result.h"
#include "engine/base/token_id.h"
#include "engine/graph/graph.h"
#include "engine/operations/plan.h"
#include "engine/pass/batch.h"
#include "engine/runtime/executor.h"

namespace lockstep {

// One thread at a time: the one that runs the model's passes.
class PredictingDrafter {
 public:
  // `given`: Model::given_form of the block. `positions`: longer texts are not drafted. `plan`: the
  // block's. Executors and plan outlive this.
  PredictingDrafter(Executor& model, Executor& block, const Plan& plan, HiddenForm given,
                    size_t positions);

  // A sequence's tokens in the last pass of the model, and what is known of its text behind it.
  struct Passed {
    uint64_t sequence = 0;
    std::span<const TokenId> tokens;  // known: prompt and generated, of which the pass has some
    std::span<const uint32_t> pages;  // of the block's cache, for all known tokens
    size_t begin = 0;                 // the first position that the pass has computed ...
    size_t count = 0;                 // ... and how many; those of tokens that were rejected count
    size_t first_token = 0;           // in the pass's batch
  };
  // After each pass of the model and before the next one: keeps the rows of known tokens. The block
  // computes what it lacks of a text, where that is more than a few tokens. A sequence whose first
  // tokens it has not seen computed has no drafts. Fails as Executor::run() does.
  Result<void> follow(std::span<const Passed> passed);

  // A sequence that generates, and what is drafted for it.
  struct Stream {
    uint64_t sequence = 0;
    std::span<const TokenId> tokens;  // known, as follow() was told them
    std::span<const uint32_t> pages;  // as Passed's
    size_t most = 0;                  // drafted tokens
    std::vector<TokenId> drafts;      // the result: `most` of them at most
  };
  // Between passes of the model, after follow(): the likeliest token behind each text, and behind
  // that one, as far as pages go. A block that gives no rows of its own drafts one token. Fails as
  // Executor::run() does.
  Result<void> draft(std::span<Stream> streams);

  // The sequence has ended, or its pages hold something else from now on.
  void forget(uint64_t sequence) { texts_.erase(sequence); }
  // Pages that were handed out anew.
  void clear_pages(std::span<const uint32_t> pages);

  // The tokens that the block has computed of a sequence's text, and those whose rows are kept.
  size_t followed(uint64_t sequence) const;

 private:
  // The block has computed the first tokens of a text, and has rows for some behind them.
  struct Text {
    size_t computed = 0;
    std::vector<float> rows;  // to be given with the tokens from `computed` on
    bool is_lost = false;     // rows are missing in between
  };
  // Tokens of one text for a pass.
  struct Part {
    Text* text = nullptr;
    std::span<const TokenId> tokens;  // from position `begin` on
    std::span<const uint32_t> pages;
    size_t begin = 0;
    std::span<const float> rows;
    Stream* stream = nullptr;  // logits of its last token are wanted; null: of none
  };

  size_t kept_tokens(const Text& text) const { return text.rows.size() / columns_; }
  Result<void> keep_rows(const Passed& passed, Text& text);
  void add_part(const Part& part);
  Result<void> run_parts();
  Result<void> draft_first(std::span<Stream> streams);
  Result<void> draft_next();
  Result<void> read_drafts();

  Executor& model_;
  Executor& block_;
  const Plan& plan_;  // the block's
  const HiddenForm given_;
  const size_t columns_;
  const size_t positions_;
  std::unordered_map<uint64_t, Text> texts_;  // by sequence
  std::vector<Part> parts_;                   // of the next pass
  std::vector<float> own_rows_;               // of the last one, of each part that drafts
  Batch batch_;
  std::vector<uint32_t> cleared_;  // before the next pass
};

}  // namespace lockstep
