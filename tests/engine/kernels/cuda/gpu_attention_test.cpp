// Attention on a GPU, against float64.
#include "engine/kernels/gpu_attention.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "engine/tensor/format.h"
#include "tests/engine/kernels/attention_reference.h"
#include "tests/engine/kernels/cuda/attended_tokens.h"

namespace lockstep {
namespace {

using Heads = AttendedHeads;
using Place = AttendedPlace;
using Outputs = AttendedOutputs;

void expect_near_reference(const Attended& run, const std::vector<Place>& places) {
  const Outputs outputs = attend_prepared(run, places);
  const size_t key_dimensions = run.cache.layer().key_dimension;
  const size_t dimensions = run.cache.layer().value_dimension;
  const size_t row = run.heads.count * dimensions;
  for (size_t token = 0; token < places.size(); ++token) {
    const std::vector<float> queries = queries_of(run, places[token]);
    for (size_t head = 0; head < run.heads.count; ++head) {
      const size_t kv_head = (head + run.heads.offset) / run.heads.group;
      QueryTraits traits = run.others.of(head);
      traits.scale = kAttendedScale;
      traits.window = run.window;
      const AttentionReference reference =
          attention_reference(run.cache.stored(places[token].sequence, kv_head),
                              &queries[head * key_dimensions], traits, places[token].position);
      for (size_t d = 0; d < dimensions; ++d) {
        const size_t column = head * dimensions + d;
        const float result = outputs.floats[token * row + column];
        ASSERT_NEAR(static_cast<double>(result), reference.output[d], reference.bound[d])
            << format_name(run.cache.layer().format) << ", " << key_dimensions << " and "
            << dimensions << " dimensions, window " << run.window << ", position "
            << places[token].position << ", head " << head;
        ASSERT_EQ(outputs.bf16[token * outputs.bf16_stride + column], float_to_bf16(result));
      }
    }
    for (size_t column = row; column < outputs.bf16_stride; ++column) {
      ASSERT_EQ(outputs.bf16[token * outputs.bf16_stride + column], 0);
    }
  }
}

TEST(GpuAttention, generated_tokens_are_near_the_reference_in_every_format) {
  for (const KvFormat format : kGpuKvFormats) {
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

// Values of fewer or of more dimensions than keys, in steps of fewer keys than a page as well.
const HeadDimensions kUnlike[] = {{192, 128}, {24, 8}, {8, 24}, {32, 96}, {512, 64}, {64, 512}};

TEST(GpuAttention, values_have_other_dimensions_than_keys) {
  for (const KvFormat format : kGpuKvFormats) {
    for (const HeadDimensions& dimensions : kUnlike) {
      if (!kv_format_fits(format, dimensions.keys) || !kv_format_fits(format, dimensions.values)) {
        continue;
      }
      const GpuCache cache(format, dimensions, 2, {150, 2}, 31);
      for (const unsigned group : {1U, 3U}) {
        for (const size_t units : {size_t{1000}, size_t{0}}) {
          expect_near_reference({.cache = cache,
                                 .heads = {.count = 2 * group, .group = group},
                                 .window = group == 1 ? 0U : 70U,
                                 .units_max = units},
                                {{0, 149}, {1, 1}, {0, 63}});
        }
      }
    }
  }
}

TEST(GpuAttention, groups_of_any_size_share_a_head_of_keys) {
  const GpuCache cache(KvFormat::kBf16, 32, 2, {90}, 23);
  for (const Heads& heads :
       {Heads{.count = 2, .group = 1}, Heads{.count = 10, .group = 5},
        Heads{.count = 32, .group = 16}, Heads{.count = 140, .group = 70},
        Heads{.count = 9, .group = 8}, Heads{.count = 3, .group = 4, .offset = 3},
        Heads{.count = 20, .group = 12, .offset = 4}}) {
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

// By themselves and together, over one unit, several, and several pages of one.
std::vector<GroupTraits> other_traits() {
  const std::vector<float> sinks = {0.5F, -60.0F, 4.0F, 20.0F};
  const std::vector<float> slopes = {0.5F, 0.25F, 0.004F, 0.0F};
  return {{.score_cap = 0.7F},
          {.sinks = sinks},
          {.slopes = slopes},
          {.section = 70},
          {.section = 128, .score_cap = 2.0F, .slopes = slopes, .sinks = sinks}};
}

TEST(GpuAttention, scores_are_capped_and_sloped_heads_have_sinks_and_tokens_sections) {
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kF16}) {
    const GpuCache cache(format, 16, 2, {300, 8'300}, 30);
    for (const GroupTraits& others : other_traits()) {
      for (const unsigned window : {0U, 90U}) {
        for (const size_t units : {size_t{1000}, size_t{0}}) {
          expect_near_reference({.cache = cache,
                                 .heads = {.count = 4, .group = 2},
                                 .window = window,
                                 .units_max = units,
                                 .others = others},
                                {{0, 12}, {0, 69}, {0, 70}, {0, 299}, {1, 8'200}});
        }
      }
    }
  }
}

// They have no units. Some of a page's keys, all of a page and several pages are behind a token.
TEST(GpuAttention, tokens_see_later_ones) {
  const std::vector<float> sinks = {0.5F, -60.0F, 4.0F, 20.0F};
  const std::vector<float> slopes = {0.5F, 0.25F, 0.004F, 0.0F};
  const std::vector<GroupTraits> traits = {
      {.ahead = UINT32_MAX},
      {.ahead = 1},
      {.ahead = 63, .slopes = slopes},
      {.ahead = UINT32_MAX, .score_cap = 2.0F, .slopes = slopes, .sinks = sinks}};
  for (const KvFormat format : kGpuKvFormats) {
    const GpuCache cache(format, 32, 2, {300, 5'000, 1}, 40);
    for (const GroupTraits& others : traits) {
      for (const unsigned group : {1U, 2U}) {
        expect_near_reference({.cache = cache,
                               .heads = {.count = 2 * group, .group = group},
                               .window = group == 1 ? 0U : 90U,
                               .units_max = 0,
                               .others = others},
                              {{0, 0}, {0, 62}, {0, 63}, {0, 299}, {2, 0}, {1, 4'990}, {1, 2'000}});
      }
    }
  }
  const GpuCache unlike(KvFormat::kF16, {32, 64}, 1, {70}, 41);
  expect_near_reference({.cache = unlike,
                         .heads = {.count = 3, .group = 3},
                         .units_max = 0,
                         .others = {.ahead = UINT32_MAX}},
                        {{0, 0}, {0, 69}});
}

// From 4,096 keys on a unit has several pages, the last one fewer of them.
TEST(GpuAttention, units_of_several_pages) {
  const GpuCache cache(KvFormat::kF16, 16, 1, {8'300}, 27);
  for (const unsigned window : {0U, 4'100U, 100U}) {
    expect_near_reference(
        {.cache = cache, .heads = {.count = 2, .group = 2}, .window = window},
        {{0, 4'095}, {0, 4'096}, {0, 4'160}, {0, 4'223}, {0, 8'191}, {0, 8'192}, {0, 8'299}});
  }
}

// A page of large heads is taken in several steps.
TEST(GpuAttention, steps_of_fewer_keys_than_a_page) {
  EXPECT_EQ(gpu_attention_step(KvFormat::kF32, 128, 128), 64U);
  EXPECT_EQ(gpu_attention_step(KvFormat::kF16, 256, 256), 64U);
  EXPECT_EQ(gpu_attention_step(KvFormat::kF32, 256, 256), 32U);
  EXPECT_EQ(gpu_attention_step(KvFormat::kF32, 512, 512), 8U);
  EXPECT_EQ(gpu_attention_step(KvFormat::kF32, 512, 64), 16U);
  EXPECT_EQ(gpu_attention_step(KvFormat::kF16, 192, 128), 64U);
  for (const unsigned dimensions : {256U, 512U}) {
    const GpuCache cache(KvFormat::kF32, dimensions, 1, {150}, 28);
    for (const unsigned window : {0U, 41U}) {
      expect_near_reference({.cache = cache, .heads = {.count = 2, .group = 2}, .window = window},
                            {{0, 149}, {0, 63}, {0, 64}, {0, 111}});
    }
  }
}

// With the bits that they have when a launch before it prepares them, in the cache as well, where
// the token's own place has held something else.
void expect_prepared_alike(KvFormat format, HeadDimensions dimensions, const Heads& heads,
                           unsigned window, const std::vector<size_t>& contexts) {
  const unsigned kv_heads = (heads.offset + heads.count + heads.group - 1) / heads.group;
  const GpuCache apart(format, dimensions, kv_heads, contexts, 29);
  const GpuCache at_once(format, dimensions, kv_heads, contexts, 29);
  std::vector<Place> places;
  for (uint32_t i = 0; i < contexts.size(); ++i) {
    places.push_back({i, static_cast<uint32_t>(contexts[i] - 1)});
  }
  const auto attend = [&](const GpuCache& cache, Preparing preparing) {
    return attend_unprepared({.cache = cache, .heads = heads, .window = window}, places, preparing,
                             2);
  };
  const std::string where = std::string(format_name(format)) + ", " +
                            std::to_string(dimensions.keys) + " and " +
                            std::to_string(dimensions.values) + " dimensions, groups of " +
                            std::to_string(heads.group) + ", window " + std::to_string(window);
  EXPECT_TRUE(attend(apart, Preparing::kApart) == attend(at_once, Preparing::kByAttention))
      << where;
  const size_t bytes = apart.layer().head_stride_bytes * kv_heads;
  EXPECT_EQ(0, std::memcmp(apart.layer().blocks, at_once.layer().blocks, bytes)) << where;
}

TEST(GpuAttention, heads_are_prepared_in_the_same_launch) {
  const std::vector<size_t> contexts = {1, 2, 64, 65, 66, 128, 300};
  for (const KvFormat format : kGpuKvFormats) {
    for (const unsigned window : {0U, 1U, 70U}) {
      expect_prepared_alike(format, 64, {.count = 8, .group = 4}, window, contexts);
    }
    expect_prepared_alike(format, 32, {.count = 2, .group = 1}, 0, contexts);
    expect_prepared_alike(format, 128, {.count = 20, .group = 12, .offset = 4}, 0, contexts);
    expect_prepared_alike(format, 32, {.count = 32, .group = 16}, 0, {130});
    expect_prepared_alike(format, {96, 32}, {.count = 4, .group = 2}, 70, contexts);
    expect_prepared_alike(format, {32, 64}, {.count = 2, .group = 1}, 0, contexts);
  }
  expect_prepared_alike(KvFormat::kF16, 80, {.count = 3, .group = 2, .offset = 1}, 0, contexts);
  expect_prepared_alike(KvFormat::kF32, 512, {.count = 2, .group = 2}, 0, contexts);
  // Units of two pages, of which the last token's has one or two.
  for (const size_t context : {4'150U, 4'200U, 4'224U}) {
    expect_prepared_alike(KvFormat::kBf16, 16, {.count = 2, .group = 2}, 0, {context});
  }
}

TEST(GpuAttention, a_generated_tokens_bits_are_its_own) {
  const GpuCache cache(KvFormat::kF16, 64, 1, {300, 90}, 25);
  const Attended run = {.cache = cache, .heads = {.count = 4, .group = 4}};
  const std::vector<Place> places = {{0, 299}, {1, 33}, {1, 89}, {0, 128}};
  const Outputs together = attend_prepared(run, places);
  for (size_t token = 0; token < places.size(); ++token) {
    Attended alone = run;
    alone.grid_rows = 7;
    const Outputs own = attend_prepared(alone, {places[token]});
    for (size_t i = 0; i < own.floats.size(); ++i) {
      ASSERT_EQ(own.floats[i], together.floats[token * own.floats.size() + i]) << token;
    }
  }
}

// The space for partial results decides no bit.
TEST(GpuAttention, a_token_without_units_has_the_bits_that_it_has_with_them) {
  const std::vector<Place> places = {{0, 69}, {1, 520}, {0, 12}, {1, 511}};
  for (const KvFormat format : kGpuKvFormats) {
    const GpuCache cache(format, 32, 2, {70, 521}, 26);
    for (const Heads& heads :
         {Heads{.count = 2, .group = 1}, Heads{.count = 4, .group = 2},
          Heads{.count = 6, .group = 3}, Heads{.count = 17, .group = 10, .offset = 3}}) {
      Attended run = {.cache = cache, .heads = heads, .window = heads.group == 3 ? 300U : 0U};
      if (heads.group == 2) run.others = {.score_cap = 2.0F, .sinks = {0.5F, -3.0F, 4.0F, 20.0F}};
      const Outputs roomy = attend_prepared(run, places);
      for (const size_t units : {size_t{0}, size_t{4}}) {
        run.units_max = units;
        const Outputs tight = attend_prepared(run, places);
        ASSERT_EQ(tight.floats, roomy.floats) << format_name(format) << ", " << units;
        ASSERT_EQ(tight.bf16, roomy.bf16) << format_name(format) << ", " << units;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
