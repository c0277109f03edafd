// Attention on a GPU, against float64.
#include "engine/kernels/gpu_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/base/checked_math.h"
#include "engine/tensor/format.h"
#include "tests/engine/kernels/attention_reference.h"
#include "tests/engine/kernels/cuda/gpu_cache.h"

namespace lockstep {
namespace {

struct Place {
  uint32_t sequence;
  uint32_t position;
};

struct Heads {
  unsigned count;
  unsigned group;
  unsigned offset = 0;
};

struct Attended {
  const GpuCache& cache;
  Heads heads;
  unsigned window = 0;
  unsigned grid_rows = 3;
  size_t units_max = 1000;  // tokens beyond them are walked over
};

constexpr float kScale = 0.125F;

// A token's queries, whatever else is in the batch.
std::vector<float> queries_of(const Attended& run, const Place& place) {
  return random_floats(run.heads.count * run.cache.layer().head_dimension,
                       9000 + place.sequence * 1000 + place.position);
}

struct Outputs {
  std::vector<float> floats;  // [token][head][dimension]
  std::vector<uint16_t> bf16;
  size_t bf16_stride;
};

Outputs attend_generated(const Attended& run, const std::vector<Place>& places) {
  const size_t row = run.heads.count * run.cache.layer().head_dimension;
  GpuBatchLimits limits = run.cache.limits();
  limits.attention_units = run.units_max;
  GpuTestBatch batch(limits);
  for (size_t i = 0; i < run.cache.sequence_count(); ++i) {
    batch.writer().add_sequence(run.cache.pages(i));
  }
  std::vector<float> queries;
  for (const Place& place : places) {
    batch.writer().add_generated(0, place.position, place.sequence);
    const std::vector<float> own = queries_of(run, place);
    queries.insert(queries.end(), own.begin(), own.end());
  }
  batch.writer().end();
  const size_t units = batch.batch().counts->attention_units;
  std::vector<float> partial_outputs(units * row, NAN);
  std::vector<float> partial_sums(units * run.heads.count * 2, NAN);
  const size_t stride = round_up<size_t>(row, 32);
  Outputs outputs{std::vector<float>(places.size() * row, NAN),
                  std::vector<uint16_t>(places.size() * stride, 0x1234), stride};
  const GpuAttention attention = {.batch = batch.batch(),
                                  .kv = run.cache.layer(),
                                  .queries = queries.data(),
                                  .query_stride = row,
                                  .head_count = run.heads.count,
                                  .kv_head_count = run.cache.kv_head_count(),
                                  .group = run.heads.group,
                                  .group_offset = run.heads.offset,
                                  .window = run.window,
                                  .scale = kScale,
                                  .output = {.floats = outputs.floats.data(),
                                             .float_stride = row,
                                             .bf16 = outputs.bf16.data(),
                                             .bf16_stride = stride},
                                  .partial_outputs = partial_outputs.data(),
                                  .partial_sums = partial_sums.data(),
                                  .grid_rows = run.grid_rows,
                                  .token_rows = 2};
  gpu_attend_generated(nullptr, attention);
  // Each token is the one kernel's or the other's.
  const std::vector<float> with_units = outputs.floats;
  const auto split = static_cast<std::ptrdiff_t>(batch.batch().counts->split * row);
  const auto is_nan = [](float x) { return std::isnan(x); };
  EXPECT_TRUE(std::all_of(with_units.begin() + split, with_units.end(), is_nan));
  std::fill_n(outputs.floats.begin(), split, NAN);
  gpu_attend_walked(nullptr, attention);
  EXPECT_TRUE(std::all_of(outputs.floats.begin(), outputs.floats.begin() + split, is_nan));
  std::copy_n(with_units.begin(), split, outputs.floats.begin());
  return outputs;
}

void expect_near_reference(const Attended& run, const std::vector<Place>& places) {
  const Outputs outputs = attend_generated(run, places);
  const size_t dimensions = run.cache.layer().head_dimension;
  const size_t row = run.heads.count * dimensions;
  for (size_t token = 0; token < places.size(); ++token) {
    const std::vector<float> queries = queries_of(run, places[token]);
    for (size_t head = 0; head < run.heads.count; ++head) {
      const size_t kv_head = (head + run.heads.offset) / run.heads.group;
      const AttentionReference reference = attention_reference(
          run.cache.stored(places[token].sequence, kv_head), &queries[head * dimensions], kScale,
          places[token].position, run.window);
      for (size_t d = 0; d < dimensions; ++d) {
        const size_t column = head * dimensions + d;
        const float result = outputs.floats[token * row + column];
        ASSERT_NEAR(static_cast<double>(result), reference.output[d], reference.bound[d])
            << format_name(run.cache.layer().format) << ", " << dimensions << " dimensions, window "
            << run.window << ", position " << places[token].position << ", head " << head;
        ASSERT_EQ(outputs.bf16[token * outputs.bf16_stride + column], float_to_bf16(result));
      }
    }
    for (size_t column = row; column < outputs.bf16_stride; ++column) {
      ASSERT_EQ(outputs.bf16[token * outputs.bf16_stride + column], 0);
    }
  }
}

TEST(GpuAttention, generated_tokens_are_near_the_reference_in_every_format) {
  for (const KvFormat format : kAllKvFormats) {
    const GpuCache cache(format, 64, 2, {300, 70, 1}, 21);
    const std::vector<Place> places = {{0, 299}, {1, 69}, {2, 0}, {0, 255}, {0, 256}};
    expect_near_reference({.cache = cache, .heads = {.count = 4, .group = 2}}, places);
    expect_near_reference({.cache = cache, .heads = {.count = 4, .group = 2}, .window = 33},
                          places);
  }
}

TEST(GpuAttention, generated_tokens_have_heads_of_any_size) {
  for (const unsigned dimensions : {8U, 24U, 80U, 96U, 128U, 256U, 512U}) {
    const GpuCache cache(KvFormat::kF16, dimensions, 1, {67}, 22);
    expect_near_reference({.cache = cache, .heads = {.count = 3, .group = 3}}, {{0, 66}, {0, 12}});
  }
}

TEST(GpuAttention, groups_of_any_size_share_a_head_of_keys) {
  const GpuCache cache(KvFormat::kBf16, 32, 2, {90}, 23);
  for (const Heads& heads :
       {Heads{.count = 2, .group = 1}, Heads{.count = 10, .group = 5},
        Heads{.count = 32, .group = 16}, Heads{.count = 9, .group = 8},
        Heads{.count = 3, .group = 4, .offset = 3}, Heads{.count = 20, .group = 12, .offset = 4}}) {
    expect_near_reference({.cache = cache, .heads = heads}, {{0, 89}});
  }
}

TEST(GpuAttention, windows_begin_and_end_anywhere) {
  const GpuCache cache(KvFormat::kQ8_0, 32, 1, {600}, 24);
  for (const unsigned window : {1U, 2U, 64U, 87U, 88U, 256U, 343U, 344U, 345U, 600U, 1000U}) {
    expect_near_reference({.cache = cache, .heads = {.count = 1, .group = 1}, .window = window},
                          {{0, 599}, {0, 342}});
  }
}

TEST(GpuAttention, a_generated_tokens_bits_are_its_own) {
  const GpuCache cache(KvFormat::kF16, 64, 1, {300, 90}, 25);
  const Attended run = {.cache = cache, .heads = {.count = 4, .group = 4}};
  const std::vector<Place> places = {{0, 299}, {1, 33}, {1, 89}, {0, 128}};
  const Outputs together = attend_generated(run, places);
  for (size_t token = 0; token < places.size(); ++token) {
    Attended alone = run;
    alone.grid_rows = 7;
    const Outputs own = attend_generated(alone, {places[token]});
    for (size_t i = 0; i < own.floats.size(); ++i) {
      ASSERT_EQ(own.floats[i], together.floats[token * own.floats.size() + i]) << token;
    }
  }
}

// Whatever there is room for in partial results.
TEST(GpuAttention, a_token_without_units_has_the_bits_that_it_has_with_them) {
  const std::vector<Place> places = {{0, 69}, {1, 520}, {0, 12}, {1, 511}};
  for (const KvFormat format : kAllKvFormats) {
    const GpuCache cache(format, 32, 2, {70, 521}, 26);
    for (const Heads& heads :
         {Heads{.count = 2, .group = 1}, Heads{.count = 4, .group = 2},
          Heads{.count = 6, .group = 3}, Heads{.count = 17, .group = 10, .offset = 3}}) {
      Attended run = {.cache = cache, .heads = heads, .window = heads.group == 3 ? 300U : 0U};
      const Outputs roomy = attend_generated(run, places);
      for (const size_t units : {size_t{0}, size_t{4}}) {
        run.units_max = units;
        const Outputs tight = attend_generated(run, places);
        ASSERT_EQ(tight.floats, roomy.floats) << format_name(format) << ", " << units;
        ASSERT_EQ(tight.bf16, roomy.bf16) << format_name(format) << ", " << units;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
