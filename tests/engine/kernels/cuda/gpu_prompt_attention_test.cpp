// Attention of prompted tokens on a GPU, against float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/base/checked_math.h"
#include "engine/kernels/gpu_attention.h"
#include "engine/tensor/format.h"
#include "tests/engine/kernels/attention_reference.h"
#include "tests/engine/kernels/cuda/gpu_cache.h"
#include "tests/engine/kernels/cuda/kernel_rounding.h"
#include "tests/engine/kernels/group_traits.h"

namespace lockstep {
namespace {

constexpr float kScale = 0.125F;

// Tokens [begin, end) of a sequence.
struct Stretch {
  uint32_t sequence;
  uint32_t begin;
  uint32_t end;
};

struct Prompt {
  const GpuCache& cache;
  unsigned head_count;
  unsigned group;
  unsigned offset = 0;
  unsigned window = 0;
  // Its queries are those of a prompt of so many heads, from this one on; 0: its own.
  unsigned of_heads = 0;
  unsigned first_head = 0;
  GroupTraits others = {};  // sections, a cap, and sinks of all heads
};

std::vector<float> queries_of(const Prompt& prompt, uint32_t sequence, uint32_t position) {
  const size_t dimensions = prompt.cache.layer().key_dimension;
  const unsigned heads = prompt.of_heads == 0 ? prompt.head_count : prompt.of_heads;
  const std::vector<float> all =
      random_floats(heads * dimensions, 7000 + sequence * 1000 + position);
  const float* first = all.data() + prompt.first_head * dimensions;
  return {first, first + prompt.head_count * dimensions};
}

// [token][head][dimension]; a generated token, which is none of this kernel's, comes first if
// asked.
std::vector<float> attend_prompted(const Prompt& prompt, const std::vector<Stretch>& stretches,
                                   bool with_generated = false) {
  GpuBatchLimits limits = prompt.cache.limits();
  limits.lengths = limits.sequences;
  GpuTestBatch batch(limits);
  for (size_t i = 0; i < prompt.cache.sequence_count(); ++i) {
    batch.writer().add_sequence(prompt.cache.pages(i));
  }
  const size_t query_row = prompt.head_count * prompt.cache.layer().key_dimension;
  const size_t row = prompt.head_count * prompt.cache.layer().value_dimension;
  std::vector<float> queries;
  if (with_generated) {
    batch.writer().add_generated(0, 0, 0);
    queries.resize(query_row);
  }
  for (const Stretch& stretch : stretches) {
    for (uint32_t position = stretch.begin; position < stretch.end; ++position) {
      batch.writer().add_prompted(0, position, stretch.sequence);
      const std::vector<float> own = queries_of(prompt, stretch.sequence, position);
      queries.insert(queries.end(), own.begin(), own.end());
    }
  }
  batch.writer().end();
  for (size_t i = 0; i < prompt.cache.sequence_count(); ++i) {
    batch.batch().lengths[i] = static_cast<uint32_t>(prompt.cache.context(i));
  }
  const size_t stride = round_up<size_t>(row, 32);
  const size_t tokens = queries.size() / query_row;
  std::vector<float> floats(tokens * row, 77.0F);
  std::vector<uint16_t> bf16(tokens * stride, 0x1234);
  gpu_attend_prompted(
      nullptr, {.batch = batch.batch(),
                .kv = prompt.cache.layer(),
                .queries = queries.data(),
                .query_stride = query_row,
                .head_count = prompt.head_count,
                .kv_head_count = prompt.cache.kv_head_count(),
                .group = prompt.group,
                .group_offset = prompt.offset,
                .window = prompt.window,
                .scale = kScale,
                .output = {.floats = floats.data(),
                           .float_stride = row,
                           .bf16 = bf16.data(),
                           .bf16_stride = stride},
                .grid_rows = 2,
                .section = static_cast<unsigned>(prompt.others.section),
                .score_cap = prompt.others.score_cap,
                .sinks = prompt.others.sinks.empty() ? nullptr : prompt.others.sinks.data(),
                .slopes = prompt.others.slopes.empty() ? nullptr : prompt.others.slopes.data(),
                .ahead = static_cast<unsigned>(prompt.others.ahead)});
  const size_t first = with_generated ? 1 : 0;
  for (size_t i = first * row; i < floats.size(); ++i) {
    EXPECT_EQ(bf16[i / row * stride + i % row], float_to_bf16(floats[i]));
  }
  for (size_t i = row; i < stride; ++i) EXPECT_EQ(bf16[first * stride + i], 0);
  if (with_generated) {
    EXPECT_EQ(floats[0], 77.0F);
    floats.erase(floats.begin(), floats.begin() + static_cast<std::ptrdiff_t>(row));
  }
  return floats;
}

// The queries as the products see them are given to the reference. What else is rounded, beside
// its own f32: the weights (16-bit), and, of kQ8_0, keys and values (bf16). With scores off by at
// most E a weight's share is off by a factor within e^(2 E). Weights below f16's normal numbers are
// off by 2^-25 each. Where the reference counts a rounding for each term of a sum, 16 terms of a
// tile product have tile_product_roundings() together.
void expect_near(const Prompt& prompt, uint32_t sequence, uint32_t position, const float* row) {
  const KvFormat format = prompt.cache.layer().format;
  const size_t key_dimensions = prompt.cache.layer().key_dimension;
  const size_t dimensions = prompt.cache.layer().value_dimension;
  const bool tiles = gpu_has_prompt_tiles(format, key_dimensions, dimensions);
  std::vector<float> queries = queries_of(prompt, sequence, position);
  for (float& query : queries) {
    if (!tiles) continue;
    query = format == KvFormat::kF16 ? half_to_float(float_to_half(query))
                                     : bf16_to_float(float_to_bf16(query));
  }
  const size_t section = prompt.others.section;
  const size_t begin = std::max<size_t>(
      section == 0 ? 0 : position - position % section,
      prompt.window == 0 || prompt.window > position ? 0 : position + 1 - prompt.window);
  for (size_t head = 0; head < prompt.head_count; ++head) {
    const PagedSequence& stored =
        prompt.cache.stored(sequence, (head + prompt.offset) / prompt.group);
    const float* query = &queries[head * key_dimensions];
    QueryTraits traits = prompt.others.of(head);
    traits.scale = kScale;
    traits.window = prompt.window;
    const AttentionReference reference = attention_reference(stored, query, traits, position);
    double score_error = 0;
    std::vector<double> scores;
    const size_t end = traits.end(position, prompt.cache.context(sequence));
    for (size_t token = begin; token < end; ++token) {
      double score = 0;
      double sizes = 0;
      for (size_t d = 0; d < key_dimensions; ++d) {
        const double product = static_cast<double>(query[d]) * stored.key(token, d);
        score += product * static_cast<double>(kScale);
        sizes += std::fabs(product) * static_cast<double>(kScale);
      }
      const double cap = prompt.others.score_cap;
      scores.push_back(cap == 0 ? score : cap * std::tanh(score / cap));
      scores.back() -=
          traits.slope * std::fabs(static_cast<double>(position) - static_cast<double>(token));
      score_error = std::max(score_error, sizes * 0x1p-8);
    }
    const bool rounds = tiles && format == KvFormat::kQ8_0;
    const double weights_off = tiles ? (format == KvFormat::kF16 ? 0x1p-11 : 0x1p-8) : 0;
    const double relative =
        (rounds ? std::expm1(2 * score_error) * 1.01 + 0x1p-8 : 0) + weights_off;
    const double of_sums =
        tiles ? std::max(1.0, static_cast<double>(tile_product_roundings()) / 16) : 1;
    double greatest = *std::max_element(scores.begin(), scores.end());
    if (traits.sink) greatest = std::max<double>(greatest, *traits.sink);
    double sum = traits.sink ? std::exp(*traits.sink - greatest) : 0.0;
    for (const double score : scores) sum += std::exp(score - greatest);
    for (size_t d = 0; d < dimensions; ++d) {
      double sizes = 0;
      double plain = 0;
      for (size_t i = 0; i < scores.size(); ++i) {
        const double value = std::fabs(stored.value(begin + i, d));
        sizes += std::exp(scores[i] - greatest) / sum * value;
        plain += value;
      }
      const double bound = reference.bound[d] * 2 * of_sums + sizes * relative * 1.01 +
                           (tiles && format == KvFormat::kF16 ? plain * 0x1p-25 : 0);
      ASSERT_NEAR(static_cast<double>(row[head * dimensions + d]), reference.output[d], bound)
          << format_name(format) << ", " << key_dimensions << " and " << dimensions
          << " dimensions, window " << prompt.window << ", position " << position << ", head "
          << head << ", dimension " << d;
    }
  }
}

void expect_near_reference(const Prompt& prompt, const std::vector<Stretch>& stretches) {
  const std::vector<float> outputs = attend_prompted(prompt, stretches);
  const float* row = outputs.data();
  for (const Stretch& stretch : stretches) {
    for (uint32_t position = stretch.begin; position < stretch.end; ++position) {
      expect_near(prompt, stretch.sequence, position, row);
      row += prompt.head_count * prompt.cache.layer().value_dimension;
    }
  }
}

TEST(GpuPromptAttention, tokens_are_near_the_reference_in_every_format) {
  for (const KvFormat format : kGpuKvFormats) {
    const GpuCache cache(format, 64, 2, {90, 5}, 31);
    for (const unsigned window : {0U, 20U}) {
      expect_near_reference({.cache = cache, .head_count = 4, .group = 2, .window = window},
                            {{1, 0, 5}, {0, 61, 90}});
    }
  }
}

// In groups of two a warp has a query head by itself, in larger ones heads share a block.
TEST(GpuPromptAttention, scores_are_capped_and_sloped_heads_have_sinks_and_tokens_sections) {
  const std::vector<float> sinks = {0.5F, -60.0F, 4.0F, 20.0F, 1.0F, 0.0F};
  const std::vector<float> slopes = {0.5F, 0.25F, 0.004F, 1.0F, 0.0F, 0.0625F};
  const std::vector<GroupTraits> traits = {
      {.score_cap = 0.7F},
      {.sinks = sinks},
      {.slopes = slopes},
      {.section = 70},
      {.section = 33, .score_cap = 2.0F, .slopes = slopes, .sinks = sinks}};
  for (const KvFormat format : {KvFormat::kF16, KvFormat::kBf16, KvFormat::kF32}) {
    const GpuCache cache(format, 32, 2, {150, 5, 90}, 38);
    for (const unsigned group : {2U, 3U}) {
      for (const GroupTraits& others : traits) {
        expect_near_reference({.cache = cache,
                               .head_count = 2 * group,
                               .group = group,
                               .window = group == 2 ? 0U : 50U,
                               .others = others},
                              {{1, 0, 5}, {2, 61, 90}, {0, 130, 150}});
      }
    }
  }
}

// Tiles begin and end within pages, before a sequence's end and at it.
TEST(GpuPromptAttention, tokens_see_later_ones) {
  const std::vector<float> sinks = {0.5F, -60.0F, 4.0F, 20.0F, 1.0F, 0.0F};
  const std::vector<float> slopes = {0.5F, 0.25F, 0.004F, 1.0F, 0.0F, 0.0625F};
  const std::vector<GroupTraits> traits = {
      {.ahead = UINT32_MAX},
      {.ahead = 1},
      {.ahead = 70, .slopes = slopes},
      {.ahead = UINT32_MAX, .score_cap = 2.0F, .slopes = slopes, .sinks = sinks}};
  for (const KvFormat format : kGpuKvFormats) {
    const GpuCache cache(format, 32, 2, {150, 5, 90}, 42);
    for (const unsigned group : {2U, 3U}) {
      for (const GroupTraits& others : traits) {
        const Prompt prompt = {.cache = cache,
                               .head_count = 2 * group,
                               .group = group,
                               .window = group == 2 ? 0U : 50U,
                               .others = others};
        expect_near_reference(prompt, {{1, 0, 5}, {2, 0, 21}, {0, 52, 68}});
        expect_near_reference(prompt, {{2, 61, 66}, {0, 130, 150}});
      }
    }
  }
}

TEST(GpuPromptAttention, heads_have_any_size) {
  for (const unsigned dimensions : {8U, 80U, 96U, 128U, 256U, 264U}) {
    const GpuCache cache(KvFormat::kF16, dimensions, 1, {67}, 32);
    expect_near_reference({.cache = cache, .head_count = 3, .group = 3}, {{0, 60, 67}});
  }
}

// In every size of the kernels' blocks, a query head by itself or several in a block, and without
// tile products.
TEST(GpuPromptAttention, values_have_other_dimensions_than_keys) {
  for (const KvFormat format : kGpuKvFormats) {
    for (const HeadDimensions& dimensions :
         {HeadDimensions(192, 128), HeadDimensions(96, 64), HeadDimensions(32, 128),
          HeadDimensions(64, 32), HeadDimensions(8, 24), HeadDimensions(64, 264)}) {
      if (!kv_format_fits(format, dimensions.keys) || !kv_format_fits(format, dimensions.values)) {
        continue;
      }
      const GpuCache cache(format, dimensions, 1, {90, 3}, 39);
      for (const unsigned group : {1U, 3U}) {
        expect_near_reference({.cache = cache, .head_count = group, .group = group},
                              {{1, 0, 3}, {0, 60, 90}});
      }
    }
  }
}

TEST(GpuPromptAttention, groups_may_lie_on_several_ranks) {
  const GpuCache cache(KvFormat::kBf16, 32, 2, {20}, 33);
  expect_near_reference({.cache = cache, .head_count = 5, .group = 4, .offset = 3}, {{0, 3, 20}});
}

TEST(GpuPromptAttention, groups_have_any_size) {
  const GpuCache cache(KvFormat::kF16, 32, 2, {20}, 37);
  expect_near_reference({.cache = cache, .head_count = 140, .group = 70}, {{0, 3, 20}});
}

TEST(GpuPromptAttention, a_tokens_bits_are_its_own) {
  for (const KvFormat format : {KvFormat::kF16, KvFormat::kF32}) {
    const GpuCache cache(format, 32, 1, {280, 40}, 34);
    for (const unsigned window : {0U, 70U}) {
      const Prompt prompt = {.cache = cache, .head_count = 2, .group = 2, .window = window};
      const std::vector<float> together = attend_prompted(prompt, {{1, 3, 7}, {0, 250, 280}}, true);
      const size_t row = together.size() / 34;
      for (const uint32_t position : {250U, 255U, 256U, 270U, 279U}) {
        const std::vector<float> alone = attend_prompted(prompt, {{0, position, position + 1}});
        for (size_t i = 0; i < row; ++i) {
          ASSERT_EQ(alone[i], together[(position - 250 + 4) * row + i]) << position;
        }
      }
    }
  }
}

// If query heads share a block, keys and values come by way of shared memory.
TEST(GpuPromptAttention, a_heads_bits_are_the_same_in_a_group_and_by_itself) {
  struct Case {
    KvFormat format;
    HeadDimensions dimensions;
    unsigned heads;
    unsigned window;
  };
  for (const Case& some : {Case{KvFormat::kF16, 24, 3, 0}, Case{KvFormat::kBf16, 64, 5, 70},
                           Case{KvFormat::kF16, 80, 4, 70}, Case{KvFormat::kBf16, 128, 5, 0},
                           Case{KvFormat::kF16, {96, 64}, 3, 0}}) {
    const GpuCache cache(some.format, some.dimensions, 1, {330, 40}, 35);
    const std::vector<Stretch> stretches = {{1, 0, 7}, {0, 310, 330}};
    const Prompt group = {
        .cache = cache, .head_count = some.heads, .group = some.heads, .window = some.window};
    const std::vector<float> together = attend_prompted(group, stretches);
    for (unsigned head = 0; head < some.heads; ++head) {
      Prompt single = group;
      single.head_count = 1;
      single.group = 1;
      single.of_heads = some.heads;
      single.first_head = head;
      const std::vector<float> alone = attend_prompted(single, stretches);
      for (size_t i = 0; i < alone.size(); ++i) {
        const size_t row = i / some.dimensions.values * some.heads + head;
        ASSERT_EQ(alone[i], together[row * some.dimensions.values + i % some.dimensions.values])
            << format_name(some.format) << ", head " << head << ", element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
