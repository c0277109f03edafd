#include "engine/pass/pass_layout.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "engine/graph/device_areas.h"
#include "engine/kernels/attention.h"

namespace lockstep {
namespace {

struct Sequence {
  uint32_t position;  // of its first token in the pass
  uint32_t count;
};

Batch make_batch(const std::vector<Sequence>& sequences) {
  Batch batch;
  for (uint32_t index = 0; index < sequences.size(); ++index) {
    for (uint32_t token = 0; token < sequences[index].count; ++token) {
      batch.tokens.push_back({1, sequences[index].position + token, index});
    }
  }
  return batch;
}

constexpr auto kChunk = static_cast<uint32_t>(kAttentionChunkTokens);

// Every token once: whole, or each of its chunks, with a place for each partial result.
void expect_all_covered(const Batch& batch, const PassLayout& layout, size_t space) {
  std::map<uint32_t, std::set<uint32_t>> chunks;  // by token
  std::set<uint32_t> whole;
  std::set<uint32_t> rows;
  for (const QueryBlock& block : layout.blocks()) {
    if (block.chunk == QueryBlock::kAllChunks) {
      for (uint32_t token = block.token; token < block.token + block.count; ++token) {
        EXPECT_TRUE(whole.insert(token).second);
        EXPECT_EQ(batch.tokens[token].sequence, batch.tokens[block.token].sequence);
      }
      continue;
    }
    EXPECT_LT(block.token, kSplitTokens);
    EXPECT_TRUE(chunks[block.token].insert(block.chunk).second);
    EXPECT_TRUE(rows.insert(block.row).second);
    EXPECT_LT(block.row, space);
  }
  EXPECT_EQ(whole.size() + chunks.size(), batch.tokens.size());
  for (const auto& [token, of_token] : chunks) {
    EXPECT_FALSE(whole.contains(token));
    EXPECT_EQ(of_token.size(), batch.tokens[token].position / kChunk + 1);
  }
}

TEST(PassLayout, covers_every_token_once) {
  const std::vector<std::vector<Sequence>> passes = {
      {{0, 1}},
      {{0, 70}},
      {{kChunk - 1, 1}, {kChunk, 1}, {5 * kChunk, 1}},
      {{10 * kChunk, 1}, {3, 40}, {700, 17}},
      std::vector<Sequence>(100, {2 * kChunk, 1}),
      {{100 * kChunk, 1}, {2 * kChunk, 1}},
  };
  for (const size_t space : {0U, 5U, 400U}) {
    for (const auto& sequences : passes) {
      const Batch batch = make_batch(sequences);
      PassLayout layout(512, space);
      for (int again = 0; again < 2; ++again) {
        layout.arrange(batch);
        expect_all_covered(batch, layout, space);
      }
    }
  }
}

// A window's chunks find places where all of a long text's would not.
TEST(PassLayout, leaves_out_the_chunks_that_no_layer_sees) {
  const Batch batch = make_batch({{100 * kChunk + 7, 1}});
  const auto chunks_of = [&](const std::vector<AttentionWindow>& windows) {
    PassLayout layout(512, 5, {}, windows);
    layout.arrange(batch);
    std::set<uint32_t> chunks;
    for (const QueryBlock& block : layout.blocks()) {
      chunks.insert(block.chunk);
      EXPECT_TRUE(block.chunk == QueryBlock::kAllChunks || block.row < 5U);
    }
    return chunks;
  };
  EXPECT_EQ(chunks_of({{300}}), (std::set<uint32_t>{98, 99, 100}));
  EXPECT_EQ(chunks_of({{300}, {.section = 2 * kChunk}, {600}}),
            (std::set<uint32_t>{97, 98, 99, 100}));
  EXPECT_EQ(chunks_of({{300}, {}}), (std::set<uint32_t>{QueryBlock::kAllChunks}));
}

TEST(PassLayout, cuts_the_keys_of_a_long_sequence_beside_a_prompt) {
  PassLayout layout(512, 100);
  layout.arrange(make_batch({{10 * kChunk, 1}, {0, 40}}));
  EXPECT_FALSE(layout.one_token_each());
  EXPECT_EQ(layout.blocks().size(), 11U + 3U);
  layout.arrange(make_batch({{10 * kChunk, 1}, {3, 1}}));
  EXPECT_TRUE(layout.one_token_each());
}

// Prompted tokens that attend in bf16 are not cut by keys. Their blocks are as large as can be
// while there are enough of them.
TEST(PassLayout, cuts_prompts_that_attend_in_bf16_into_large_blocks) {
  const auto sizes_of = [](const PassLayout& layout) {
    std::multiset<uint32_t> sizes;
    for (const QueryBlock& block : layout.blocks()) sizes.insert(block.count);
    return sizes;
  };
  constexpr size_t kMost = 128;
  PassLayout layout(512, 100, {.tokens_most = kMost, .wanted = 2});
  Batch batch = make_batch({{0, 512}});
  layout.arrange(batch);
  expect_all_covered(batch, layout, 100);
  EXPECT_EQ(sizes_of(layout), (std::multiset<uint32_t>{128, 128, 128, 128}));
  batch = make_batch({{3, 100}});
  layout.arrange(batch);
  expect_all_covered(batch, layout, 100);
  EXPECT_EQ(sizes_of(layout), (std::multiset<uint32_t>{64, 36}));
  batch = make_batch({{10 * kChunk, 1}, {10 * kChunk, 1}, {0, 5}});
  batch.generated_tokens = 1;
  layout.arrange(batch);
  expect_all_covered(batch, layout, 100);
  // The generated token's chunks, and the prompted ones' blocks.
  EXPECT_EQ(layout.blocks().size(), 11U + 2U);
}

TEST(PassLayout, counts_the_logits_of_generated_tokens) {
  Batch batch = make_batch({{5, 1}, {6, 1}, {0, 9}});
  batch.generated_tokens = 2;
  batch.logit_tokens = {0, 1, 10};
  PassLayout layout(512, 0);
  layout.arrange(batch);
  EXPECT_EQ(layout.generated_logits(), 2U);
}

}  // namespace
}  // namespace lockstep
