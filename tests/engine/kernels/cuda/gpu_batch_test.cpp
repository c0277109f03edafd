// A pass's batch in the memory that is copied to a GPU.
#include "engine/kernels/gpu_batch.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "tests/engine/kernels/cuda/gpu_cache.h"

namespace lockstep {
namespace {

TEST(GpuBatch, lays_out_units_and_tiles) {
  GpuTestBatch batch(
      {.tokens = 64, .sequences = 4, .pages = 64, .logits = 4, .attention_units = 8});
  GpuBatchWriter& writer = batch.writer();
  const std::vector<uint32_t> pages(16, 5);
  for (int sequence = 0; sequence < 4; ++sequence) writer.add_sequence(pages);
  writer.add_generated(9, 63, 0);
  writer.add_generated(8, 128, 1);
  for (uint32_t i = 0; i < 20; ++i) writer.add_prompted(i, 100 + i, 2);
  for (uint32_t i = 0; i < 3; ++i) writer.add_prompted(i, i, 3);
  writer.want_logits();
  writer.end();
  const GpuBatch& laid = batch.batch();
  EXPECT_EQ(laid.counts->tokens, 25U);
  EXPECT_EQ(laid.counts->generated, 2U);
  EXPECT_EQ(laid.counts->split, 2U);
  EXPECT_EQ(laid.counts->sequences, 4U);
  EXPECT_EQ(laid.logit_tokens[0], 24U);
  EXPECT_EQ(laid.logit_rows[24], 0U);
  EXPECT_EQ(laid.logit_rows[23], kGpuNoRow);
  EXPECT_EQ(laid.page_tables[3], 48U);
  ASSERT_EQ(laid.counts->attention_units, 4U);
  const auto expect_unit = [&](size_t unit, const GpuAttentionUnit& expected) {
    EXPECT_EQ(0, std::memcmp(&laid.units[unit], &expected, sizeof expected)) << unit;
  };
  expect_unit(0, {.token = 0, .position = 63, .pages = 0, .index = 0});
  for (uint32_t index = 0; index < 3; ++index) {
    expect_unit(1 + index, {.token = 1, .position = 128, .pages = 16, .index = index});
  }
  ASSERT_EQ(laid.counts->prompt_tiles, 3U);
  const std::vector<std::pair<uint32_t, uint32_t>> expected = {{22, 3}, {6, 16}, {2, 4}};
  for (size_t tile = 0; tile < 3; ++tile) {
    EXPECT_EQ(laid.tile_tokens[tile], expected[tile].first);
    EXPECT_EQ(laid.tile_counts[tile], expected[tile].second);
  }
}

TEST(GpuBatch, a_token_has_a_unit_for_every_page_up_to_a_limit) {
  EXPECT_EQ(gpu_token_units(0), 1U);
  EXPECT_EQ(gpu_token_units(63), 1U);
  EXPECT_EQ(gpu_token_units(64), 2U);
  EXPECT_EQ(gpu_token_units(4031), 63U);
  EXPECT_EQ(gpu_token_units(4032), 64U);
  EXPECT_EQ(gpu_token_units(131'071), 64U);
}

TEST(GpuBatch, gives_units_in_order_up_to_the_first_token_without_space) {
  GpuTestBatch batch({.tokens = 8, .sequences = 2, .pages = 64, .attention_units = 5});
  GpuBatchWriter& writer = batch.writer();
  for (int time = 0; time < 2; ++time) {
    writer.begin();
    writer.add_sequence(std::vector<uint32_t>(7, 2));
    const uint32_t sequence = writer.add_sequence(std::vector<uint32_t>(16, 1));
    // 2, 3, 4 and 1 units: what comes after the third has none, though there would be space.
    for (const uint32_t position : {100U, 150U, 250U, 5U}) {
      writer.add_generated(0, position, sequence);
    }
    writer.end();
    const GpuBatch& laid = batch.batch();
    EXPECT_EQ(laid.counts->generated, 4U);
    EXPECT_EQ(laid.counts->split, 2U);
    EXPECT_EQ(laid.counts->sequences, 1U);
    EXPECT_EQ(laid.counts->attention_units, 5U);
    for (uint32_t unit = 0; unit < 5; ++unit) {
      EXPECT_EQ(laid.units[unit].token, unit < 2 ? 0U : 1U);
      EXPECT_EQ(laid.units[unit].index, unit < 2 ? unit : unit - 2);
      EXPECT_EQ(laid.units[unit].pages, 7U);
    }
  }
}

TEST(GpuBatch, has_lengths_and_segments_where_they_are_asked_for) {
  const GpuBatchLimits without = {.tokens = 6, .sequences = 3, .pages = 8};
  EXPECT_EQ(gpu_batch_at(GpuBytes(gpu_batch_bytes(without)).data(), without).lengths, nullptr);
  EXPECT_EQ(gpu_batch_at(GpuBytes(gpu_batch_bytes(without)).data(), without).segments, nullptr);
  GpuBatchLimits limits = without;
  limits.lengths = 3;
  limits.segments = 6;
  GpuTestBatch batch(limits);
  for (int sequence = 0; sequence < 3; ++sequence) {
    batch.writer().add_sequence(std::vector<uint32_t>{1});
  }
  batch.writer().add_generated(9, 40, 2);
  for (uint32_t i = 0; i < 3; ++i) batch.writer().add_prompted(7, i, 0, i / 2);
  batch.writer().add_prompted(7, 0, 1, 1);
  batch.writer().end();
  EXPECT_EQ(batch.batch().lengths[0], 3U);
  EXPECT_EQ(batch.batch().lengths[1], 1U);
  EXPECT_EQ(batch.batch().lengths[2], 41U);
  const std::vector<uint32_t> segments(batch.batch().segments, batch.batch().segments + 5);
  EXPECT_EQ(segments, (std::vector<uint32_t>{0, 0, 0, 1, 1}));
}

// All that kernels may read lies before used_bytes(), whatever the capacity for pages.
TEST(GpuBatch, copying_what_is_used_copies_all_that_was_written) {
  const GpuBatchLimits limits = {
      .tokens = 5, .sequences = 2, .pages = 1000, .logits = 3, .attention_units = 9};
  const size_t bytes = gpu_batch_bytes(limits);
  GpuBytes block(bytes);
  GpuBatchWriter writer(block.data(), limits);
  EXPECT_EQ(writer.used_bytes() + 1000 * sizeof(uint32_t), bytes);
  writer.add_sequence(std::vector<uint32_t>{7, 8, 9});
  const uint32_t second = writer.add_sequence(std::vector<uint32_t>{10, 11});
  writer.add_generated(7, 150, 0);  // which has three units
  for (uint32_t token = 0; token < 4; ++token) writer.add_prompted(token, token, second);
  writer.want_logits();
  writer.end();
  const size_t used = writer.used_bytes();
  EXPECT_EQ(used + 995 * sizeof(uint32_t), bytes);
  GpuBytes copied(bytes);
  std::memcpy(copied.data(), block.data(), used);
  EXPECT_EQ(0, std::memcmp(copied.data(), block.data(), bytes)) << "written beyond it";
  const GpuBatch batch = gpu_batch_at(copied.data(), limits);
  EXPECT_EQ(batch.pages[batch.page_tables[second] + 1], 11U);
  EXPECT_EQ(batch.logit_rows[4], 0U);
  EXPECT_EQ(batch.token_ids[4], 3U);
  EXPECT_EQ(batch.units[2].index, 2U);
  writer.begin();
  EXPECT_LT(writer.used_bytes(), used);
}

}  // namespace
}  // namespace lockstep
