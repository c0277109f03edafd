#include "engine/pass/pass_layout.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "engine/base/checked_math.h"
#include "engine/graph/device_areas.h"
#include "engine/kernels/attention.h"

namespace lockstep {

PassLayout::PassLayout(size_t batch_tokens, size_t split_blocks, PromptBlocks prompt_blocks,
                       std::vector<AttentionWindow> windows)
    : split_blocks_(split_blocks), prompt_blocks_(prompt_blocks), windows_(std::move(windows)) {
  blocks_.reserve(batch_tokens + split_blocks);
}

void PassLayout::arrange(const Batch& batch) {
  blocks_.clear();
  rows_taken_ = 0;
  one_token_each_ = true;
  generated_logits_ =
      static_cast<size_t>(std::ranges::lower_bound(batch.logit_tokens, batch.generated_tokens) -
                          batch.logit_tokens.begin());
  const auto count = static_cast<uint32_t>(batch.tokens.size());
  if (prompt_blocks_.tokens_most != 0) {
    const size_t wanted = (count - batch.generated_tokens) / prompt_blocks_.wanted;
    const size_t most = std::max(prompt_blocks_.tokens_most, kBlockTokens);
    prompt_block_tokens_ = std::clamp(round_up(wanted, kBlockTokens), kBlockTokens, most);
  }
  for (uint32_t first = 0; first < count;) {
    uint32_t end = first + 1;
    while (end < count && batch.tokens[end].sequence == batch.tokens[first].sequence) ++end;
    one_token_each_ = one_token_each_ && end - first == 1;
    add_run(batch, first, end);
    first = end;
  }
  // A block's cost: a chunk's keys, or all that its last token sees, for as many tokens.
  std::ranges::sort(blocks_, std::greater{}, [&](const QueryBlock& block) {
    const size_t keys = block.chunk == QueryBlock::kAllChunks
                            ? batch.tokens[block.token].position + size_t{block.count}
                            : kAttentionChunkTokens;
    return keys * block.count;
  });
}

// The first chunk that a token's attention sees in any layer.
uint32_t PassLayout::first_chunk(size_t position) const {
  size_t first = position;
  for (const AttentionWindow& window : windows_) {
    first = std::min(first, window.first_seen(position));
  }
  return static_cast<uint32_t>(first / kAttentionChunkTokens);
}

// The tokens [first, end) of one sequence.
void PassLayout::add_run(const Batch& batch, uint32_t first, uint32_t end) {
  const uint32_t length = batch.tokens[end - 1].position + 1;
  const auto prompted = std::clamp(static_cast<uint32_t>(batch.generated_tokens), first, end);
  if (prompt_blocks_.tokens_most != 0 && prompted < end) {
    add_blocks(first, prompted, kBlockTokens, length);
    add_blocks(prompted, end, prompt_block_tokens_, length);
    return;
  }
  const size_t position = batch.tokens[first].position;
  const uint32_t chunk_begin = first_chunk(position);
  const auto chunk_end = static_cast<uint32_t>(position / kAttentionChunkTokens + 1);
  const size_t chunks = chunk_end - chunk_begin;
  const bool split = end - first == 1 && chunks > 1 && first < kSplitTokens &&
                     rows_taken_ + chunks <= split_blocks_;
  if (split) {
    for (uint32_t chunk = chunk_begin; chunk < chunk_end; ++chunk) {
      blocks_.push_back({first, 1, chunk, static_cast<uint32_t>(rows_taken_++), length});
    }
    return;
  }
  add_blocks(first, end, kBlockTokens, length);
}

void PassLayout::add_blocks(uint32_t first, uint32_t end, size_t tokens_most, uint32_t length) {
  const auto most = static_cast<uint32_t>(tokens_most);
  for (uint32_t token = first; token < end; token += most) {
    blocks_.push_back({.token = token, .count = std::min(most, end - token), .length = length});
  }
}

}  // namespace lockstep
