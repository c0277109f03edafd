#include "engine/runtime/pass_layout.h"

#include <algorithm>
#include <functional>

#include "engine/graph/plan.h"

namespace lockstep {
namespace {

size_t chunk_count(const BatchToken& token) {
  return token.position / kAttentionChunkTokens + 1;
}

}  // namespace

PassLayout::PassLayout(size_t batch_tokens, size_t split_blocks) : split_blocks_(split_blocks) {
  blocks_.reserve(batch_tokens + split_blocks);
}

void PassLayout::arrange(const Batch& batch) {
  blocks_.clear();
  one_token_each_ =
      std::ranges::adjacent_find(batch.tokens, {}, &BatchToken::sequence) == batch.tokens.end();
  generated_logits_ =
      static_cast<size_t>(std::ranges::lower_bound(batch.logit_tokens, batch.generated_tokens) -
                          batch.logit_tokens.begin());
  size_t chunks = 0;
  for (const BatchToken& token : batch.tokens) chunks += chunk_count(token);
  const bool split =
      one_token_each_ && batch.tokens.size() <= kSplitTokens && chunks <= split_blocks_;
  if (split) {
    split_into_chunks(batch);
  } else {
    cut_into_blocks(batch);
  }
}

void PassLayout::split_into_chunks(const Batch& batch) {
  for (uint32_t token = 0; token < batch.tokens.size(); ++token) {
    const auto first = static_cast<uint32_t>(blocks_.size());
    const auto chunks = static_cast<uint32_t>(chunk_count(batch.tokens[token]));
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      blocks_.push_back({token, 1, chunks == 1 ? QueryBlock::kAllChunks : chunk, first});
    }
  }
}

void PassLayout::cut_into_blocks(const Batch& batch) {
  const auto end = static_cast<uint32_t>(batch.tokens.size());
  for (uint32_t token = 0; token < end;) {
    uint32_t last = token + 1;
    while (last < end && last - token < kBlockTokens &&
           batch.tokens[last].sequence == batch.tokens[token].sequence) {
      ++last;
    }
    blocks_.push_back({.token = token, .count = last - token});
    token = last;
  }
  std::ranges::sort(blocks_, std::greater{},
                    [&](const QueryBlock& block) { return batch.tokens[block.token].position; });
}

}  // namespace lockstep
