// Drafts by a block that reads the model's rows: one of the model's file that predicts further
// tokens, EAGLE-3's layer or an assistant's layers of another file (docs/speculation.md). The block
// runs passes of its own between those of the model: over tokens that became known, each with the
// model's row of the token before, and then over the tokens that it has drafted itself, with its
// own rows. Its KV cache has the model's pages, by number (DraftPages).
//
// A token has its own place in the cache, and the first one is given zeros. Of a block that is
// given keys and values (GivenRows::keys) it has the place of the token before, whose keys and
// values are stored there, and all tokens that are drafted have the same one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/base/result.h"
#include "engine/base/token_id.h"
#include "engine/drafting/draft_pages.h"
#include "engine/model/model.h"
#include "engine/operations/plan.h"
#include "engine/pass/batch.h"
#include "engine/runtime/executor.h"
#include "engine/serving/draft_stage.h"

namespace lockstep {

class PredictingStage final : public DraftStage {
 public:
  struct Limits {
    GivenRows given = {};                        // of the block
    std::span<const TokenId> logit_tokens = {};  // the block's; outlives this
    size_t model_pages = 0;                      // of the model's cache
    size_t positions = 0;                        // longer texts are not drafted
  };

  // `plan`: the block's, on the first rank. Executors and plan outlive this.
  PredictingStage(Executor& model, Executor& block, const Plan& plan, const Limits& limits);

  // Keeps the rows of known tokens. The block computes what it lacks of a text, where that is more
  // than a few tokens, or fills a page, which other sequences may find.
  Result<void> follow(std::span<const PassedChunk> passed) override;
  bool reads_rows() const override { return true; }
  // The likeliest token behind each text, and behind that one, as far as pages go. A block that
  // gives no rows of its own drafts one token. A sequence whose first tokens it has not seen
  // computed, and whose pages it has not computed for another, has no drafts.
  Result<void> draft(std::span<DraftStream> streams) override;
  // Rows cannot be had later: a text is followed, or not drafted.
  double reading_seconds(DraftStream& /*stream*/) const override { return 0; }
  void rest() override { pass_seconds_ *= kKeptByRest; }
  void forget(uint64_t sequence) override { texts_.erase(sequence); }
  void clear_pages(std::span<const uint32_t> pages) override { held_.clear(pages); }
  double pass_seconds() const override { return pass_seconds_; }

  // The places that the block has computed of a sequence's text, and those whose rows are kept.
  size_t followed(uint64_t sequence) const;

 private:
  // The block has computed the first places of a text, and has rows for some behind them.
  struct Text {
    size_t computed = 0;
    std::vector<float> rows;  // to be given at the places from `computed` on
    bool is_lost = false;     // rows are missing in between
  };
  // Tokens of one text for a pass.
  struct Part {
    std::span<const TokenId> tokens;
    std::span<const uint32_t> pages;
    size_t begin = 0;  // the first one's place
    std::span<const float> rows;
    DraftStream* stream = nullptr;  // logits of its last token are wanted; null: of none
  };

  // The place of a token of this position, less one where it has that of the token before.
  size_t place_of(size_t position) const { return position - (stores_rows_ ? 1 : 0); }
  // Replaces the own columns of the row that was given last with a token of the last pass.
  Result<void> read_own_row(size_t token, std::span<float> row);
  size_t kept_tokens(const Text& text) const { return text.rows.size() / columns_; }
  // The kept tokens for which there are pages, if they are to be computed at once; else 0.
  size_t due_tokens(const Text& text, std::span<const uint32_t> pages) const;
  void begin_chunk(const PassedChunk& passed, Text& text);
  Result<void> keep_rows(const PassedChunk& passed, Text& text);
  size_t hidden_columns() const;  // of the model's hidden row
  size_t model_columns() const;   // of all that is read of it
  Result<void> read_model_row(size_t token, std::span<float> row);
  Result<void> compute_kept(const PassedChunk& passed, Text& text, size_t count);
  void add_part(const Part& part);
  Result<void> run_parts();
  void add_stream(DraftStream& stream, size_t& left);
  Result<void> draft_first(std::span<DraftStream> streams);
  Result<void> draft_next();
  Result<void> read_drafts();

  Executor& model_;
  Executor& block_;
  const Plan& plan_;  // the block's
  const Limits limits_;
  const size_t columns_;
  const bool stores_rows_;  // keys and values of the rows that it is given
  DraftPages held_;
  std::unordered_map<uint64_t, Text> texts_;  // by sequence
  std::vector<Part> parts_;                   // of the next pass
  std::vector<float> own_rows_;               // of the last one, of each part that drafts
  Batch batch_;
  double pass_seconds_ = 0;
};

}  // namespace lockstep
