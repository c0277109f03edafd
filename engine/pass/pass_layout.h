// The blocks of a pass's attention, which all its layers and ranks share. Made once per pass,
// before the workers begin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/attention_window.h"
#include "engine/pass/batch.h"

namespace lockstep {

// Queries of consecutive tokens of one sequence over all their keys, or, of a single token, over
// one chunk of them.
struct QueryBlock {
  static constexpr uint32_t kAllChunks = UINT32_MAX;

  uint32_t token = 0;  // the first, in the batch
  uint32_t count = 1;
  uint32_t chunk = kAllChunks;
  uint32_t row = 0;  // of the chunk's partial result; those of a token's chunks follow one another
  uint32_t length = 0;  // tokens of its sequence up to the end of the pass
};

// The cut of a pass's prompted tokens where they attend in bf16: into blocks as large as can be,
// but enough of them. A block is over all chunks, however many tokens it has.
struct PromptBlocks {
  size_t tokens_most = 0;  // 0: prompted tokens attend in f32, and are cut as generated ones
  size_t wanted = 1;       // so many blocks give all workers something to do
};

class PassLayout {
 public:
  // Tokens whose queries walk over the keys together: a page is converted once for all of them.
  static constexpr size_t kBlockTokens = 16;

  // `batch_tokens`: of the largest batch. `split_blocks`: the capacity in blocks of tokens
  // that are split into chunks, of which those are left out that no layer's window sees.
  PassLayout(size_t batch_tokens, size_t split_blocks, PromptBlocks prompt_blocks = {},
             std::vector<AttentionWindow> windows = {{}});

  // Lays out a batch whose tokens are in order. Allocates nothing.
  void arrange(const Batch& batch);

  // The longest first.
  std::span<const QueryBlock> blocks() const { return blocks_; }
  // Every sequence has one token: no token sees a key that another of this pass brings.
  bool one_token_each() const { return one_token_each_; }
  size_t generated_logits() const { return generated_logits_; }

 private:
  void add_run(const Batch& batch, uint32_t first, uint32_t end);
  uint32_t first_chunk(size_t position) const;
  void add_blocks(uint32_t first, uint32_t end, size_t tokens_most, uint32_t length);

  size_t split_blocks_;
  PromptBlocks prompt_blocks_;
  std::vector<AttentionWindow> windows_;
  size_t prompt_block_tokens_ = kBlockTokens;  // of the batch at hand
  size_t rows_taken_ = 0;                      // of partial results
  std::vector<QueryBlock> blocks_;
  bool one_token_each_ = false;
  size_t generated_logits_ = 0;
};

}  // namespace lockstep
