// A drafter that runs passes of its own, for all sequences at once: a stage of the engine's loop
// between two passes of the model (docs/speculation.md). A drafter of another kind is another body:
// one that reads hidden rows of the model's last pass asks the executor for them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/base/token_id.h"
#include "engine/drafting/draft_pages.h"
#include "engine/sampling/logit_row.h"

namespace lockstep {

// A sequence that generates, and what is drafted for it.
struct DraftStream {
  uint64_t sequence = 0;
  std::span<const TokenId> tokens;  // known: prompt and generated
  // The sequence's, in the model's cache: places for all tokens but the last one at least.
  std::span<const uint32_t> pages;
  TextBorders& borders;  // the sequence's, for the stage's use
  size_t most = 0;       // drafted tokens, at least 1
  std::vector<TokenId>
      drafts;  // the result: tokens of the model's vocabulary, most of them at most
};

// A sequence's tokens in a pass of the model that has ended, and its text behind it.
struct PassedChunk {
  uint64_t sequence = 0;
  std::span<const TokenId> tokens;  // known: prompt and generated
  std::span<const uint32_t> pages;  // as DraftStream's
  TextBorders& borders;             // likewise
  size_t begin = 0;                 // the first position that the pass has computed ...
  size_t count = 0;                 // ... and how many; those of tokens that were rejected count
  size_t first_token = 0;           // in the pass's batch
};

// Adds one more time to a mean of the last ones; 0: there was none. One that was held up says
// little.
inline void add_time(double seconds, double& mean) {
  constexpr double kWeightOfLast = 0.2;
  constexpr double kTimesSeen = 4;
  if (mean == 0) mean = seconds;
  mean += kWeightOfLast * (std::min(seconds, kTimesSeen * mean) - mean);
}

// The first of the likeliest of the tokens below `end`; none where its logit is no finite number.
// It is one of a GPU's candidates if any of these is below: what a GPU does not send is less
// likely. Fails as Executor::run() does.
inline Result<std::optional<TokenId>> likeliest_token(LogitRow logits, size_t end) {
  if (const LogitCandidates* const found = logits.candidates()) {
    const auto is_below = [&](TokenId token) { return static_cast<size_t>(token) < end; };
    const auto first = std::ranges::find_if(found->tokens, is_below);
    if (first != found->tokens.end()) return *first;
  }
  const auto all = logits.all();
  if (!all) return std::unexpected(all.error());
  const auto row = all->first(std::min(all->size(), end));
  const auto likeliest = std::ranges::max_element(row);
  if (!std::isfinite(*likeliest)) return std::nullopt;
  return static_cast<TokenId>(likeliest - row.begin());
}

// After 70 passes without a draft the time of one is taken for half of what it was.
inline constexpr double kKeptByRest = 0.99;

// Belongs to the engine's thread.
class DraftStage {
 public:
  virtual ~DraftStage() = default;

  // Fills in the streams' drafts, which may be empty: where the stage has yet to read the text, it
  // reads a part of it. Blocks. Fails as Executor::run() does; nothing is asked of it any more
  // then.
  virtual Result<void> draft(std::span<DraftStream> streams) = 0;
  // The time that it takes until the stage has read what it lacks of the stream's text, as far as
  // is known; 0 where it can draft at once.
  virtual double reading_seconds(DraftStream& stream) const = 0;
  // Streams had drafts to ask for, and none paid: what is known of times is slowly forgotten, so
  // that what was measured by chance is measured again.
  virtual void rest() = 0;
  // After each pass of the model, before the next one: its hidden rows can still be read. Fails as
  // draft().
  virtual Result<void> follow(std::span<const PassedChunk> /*passed*/) { return {}; }
  // Whether it does: no other pass of the model may have begun then.
  virtual bool reads_rows() const { return false; }
  // The sequence has ended.
  virtual void forget(uint64_t /*sequence*/) {}
  // These pages have been handed out anew: what they held is of no use.
  virtual void clear_pages(std::span<const uint32_t> pages) = 0;
  // The time of one of its passes that draft, as of late; 0: there was none.
  virtual double pass_seconds() const = 0;
};

}  // namespace lockstep
