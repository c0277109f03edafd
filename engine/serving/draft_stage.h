// A drafter that runs passes of its own, for all sequences at once: a stage of the engine's loop
// between two passes of the model (docs/speculation.md). A drafter of another kind is another body:
// one that reads hidden rows of the model's last pass asks the executor for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/base/token_id.h"
#include "engine/drafting/draft_pages.h"

namespace lockstep {

// A sequence that generates, and what is drafted for it.
struct DraftStream {
  std::span<const TokenId> tokens;  // known: prompt and generated
  // The sequence's, in the model's cache: places for all tokens but the last one at least.
  std::span<const uint32_t> pages;
  TextBorders& borders;  // the sequence's, for the stage's use
  size_t most = 0;       // drafted tokens, at least 1
  std::vector<TokenId>
      drafts;  // the result: tokens of the model's vocabulary, most of them at most
};

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
  // These pages have been handed out anew: what they held is of no use.
  virtual void clear_pages(std::span<const uint32_t> pages) = 0;
  // The time of one of its passes that draft, as of late; 0: there was none.
  virtual double pass_seconds() const = 0;
};

}  // namespace lockstep
