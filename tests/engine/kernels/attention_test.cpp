#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/attention_reference.h"
#include "tests/engine/kernels/paged_sequence.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {
namespace {

constexpr size_t kHeadDimensions[] = {8, 48, 64, 80, 96, 100, 128, 256, kMaxHeadDimension};
constexpr size_t kContexts[] = {1, 63, 64, 65, 200, 255, 256, 257, 321, 512, 1000};

std::vector<float> attend(const KernelTable& table, const PagedSequence& sequence,
                          const std::vector<float>& queries, size_t query_count) {
  std::vector<float> output(queries.size());
  table.attend(sequence.arguments(queries.data(), query_count, output.data()));
  return output;
}

TEST(Attention, is_near_float64_in_every_table) {
  for (const KvFormat format : kAllKvFormats) {
    for (const size_t head_dimension : kHeadDimensions) {
      if (!kv_format_fits(format, head_dimension)) continue;
      for (const size_t context : kContexts) {
        const PagedSequence sequence(format, head_dimension, context, 100);
        const std::vector<float> query = random_floats(head_dimension, 200);
        const AttentionReference expected =
            attention_reference(sequence, query.data(), 0.125, context - 1, 0);
        for (const KernelTable* table : tables_that_run_here()) {
          const std::vector<float> output = attend(*table, sequence, query, 1);
          for (size_t i = 0; i < head_dimension; ++i) {
            ASSERT_NEAR(output[i], expected.output[i], expected.bound[i])
                << describe(*table, sequence) << ", dimension " << i;
          }
        }
      }
    }
  }
}

TEST(Attention, has_the_same_bits_in_every_table) {
  for (const KvFormat format : kAllKvFormats) {
    for (const size_t head_dimension : kHeadDimensions) {
      if (!kv_format_fits(format, head_dimension)) continue;
      for (const size_t context : kContexts) {
        const PagedSequence sequence(format, head_dimension, context, 300);
        const std::vector<float> queries = random_floats(7 * head_dimension, 400);
        const auto expected = bits_of(attend(*all_kernel_tables().front(), sequence, queries, 7));
        for (const KernelTable* table : tables_that_run_here()) {
          ASSERT_EQ(bits_of(attend(*table, sequence, queries, 7)), expected)
              << describe(*table, sequence);
        }
      }
    }
  }
}

// Scores far apart: some probabilities vanish, and the maximum moves from page to page.
TEST(Attention, of_peaked_scores_is_near_float64_with_the_same_bits_in_every_table) {
  constexpr size_t kHeadDimension = 64;
  const PagedSequence sequence(KvFormat::kF32, kHeadDimension, 1000, 500);
  std::vector<float> query = random_floats(kHeadDimension, 600);
  for (float& element : query) element *= 40.0F;
  const AttentionReference expected =
      attention_reference(sequence, query.data(), 0.125, sequence.context() - 1, 0);
  const auto expected_bits = bits_of(attend(*all_kernel_tables().front(), sequence, query, 1));
  for (const KernelTable* table : tables_that_run_here()) {
    const std::vector<float> output = attend(*table, sequence, query, 1);
    EXPECT_EQ(bits_of(output), expected_bits) << table->name;
    for (size_t i = 0; i < kHeadDimension; ++i) {
      ASSERT_NEAR(output[i], expected.output[i], expected.bound[i]) << table->name;
    }
  }
}

TEST(Attention, gives_each_query_what_it_gets_alone) {
  for (const KernelTable* table : tables_that_run_here()) {
    for (const size_t head_dimension : Sizes{8, 80, 128}) {
      const PagedSequence sequence(KvFormat::kF16, head_dimension, 130, 700);
      const std::vector<float> queries = random_floats(kMaxQueryGroup * head_dimension, 800);
      std::vector<float> alone;
      for (size_t query = 0; query < kMaxQueryGroup; ++query) {
        const auto begin = queries.begin() + static_cast<ptrdiff_t>(query * head_dimension);
        const std::vector<float> one(begin, begin + static_cast<ptrdiff_t>(head_dimension));
        const std::vector<float> output = attend(*table, sequence, one, 1);
        alone.insert(alone.end(), output.begin(), output.end());
      }
      for (const size_t query_count : Sizes{1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 23, 64}) {
        const auto size = static_cast<ptrdiff_t>(query_count * head_dimension);
        const std::vector<float> some(queries.begin(), queries.begin() + size);
        EXPECT_EQ(bits_of(attend(*table, sequence, some, query_count)),
                  bits_of({alone.begin(), alone.begin() + size}))
            << table->name << ", " << query_count << " queries, head dimension " << head_dimension;
      }
    }
  }
}

TEST(Attention, does_not_see_what_lies_beyond_the_context) {
  for (const KernelTable* table : tables_that_run_here()) {
    for (const KvFormat format : kAllKvFormats) {
      for (const size_t dimension : Sizes{48, 72}) {
        const size_t head_dimension = fitting_dimension(format, dimension);
        for (const size_t context : Sizes{1, 15, 16, 17, 33, 63, 64, 65, 200}) {
          const std::vector<float> queries = random_floats(5 * head_dimension, 900);
          // All bits set is a NaN in every format; 0x7b is a great number in each.
          const auto with_filler = [&](uint8_t filler) {
            const PagedSequence sequence(format, head_dimension, context, 1000, filler);
            return bits_of(attend(*table, sequence, queries, 5));
          };
          const auto expected = with_filler(0);
          EXPECT_EQ(with_filler(0xFF), expected)
              << table->name << " " << format_name(format) << head_dimension << " " << context;
          EXPECT_EQ(with_filler(0x7B), expected)
              << table->name << " " << format_name(format) << head_dimension << " " << context;
        }
      }
    }
  }
}

TEST(Attention, does_not_depend_on_where_pages_are) {
  for (const KernelTable* table : tables_that_run_here()) {
    PagedSequence sequence(KvFormat::kBf16, 64, 1000, 1100);
    const std::vector<float> queries = random_floats(size_t{3} * 64, 1200);
    const auto expected = bits_of(attend(*table, sequence, queries, 3));
    for (const uint32_t seed : {1U, 2U, 3U}) {
      sequence.permute_pages(seed);
      EXPECT_EQ(bits_of(attend(*table, sequence, queries, 3)), expected) << table->name << seed;
    }
  }
}

TEST(Attention, takes_unaligned_rows_of_any_stride_and_writes_nothing_beside_them) {
  constexpr size_t kQueries = 6;
  for (const KernelTable* table : tables_that_run_here()) {
    for (const size_t head_dimension : Sizes{8, 48, 100}) {
      const PagedSequence sequence(KvFormat::kF16, head_dimension, 100, 1300);
      const std::vector<float> packed = random_floats(kQueries * head_dimension, 1400);
      const std::vector<float> expected = attend(*table, sequence, packed, kQueries);
      const size_t query_stride = head_dimension + 3;
      const size_t output_stride = head_dimension + 5;
      std::vector<float> queries(1 + kQueries * query_stride, 1e30F);
      std::vector<float> output(1 + kQueries * output_stride, 7.0F);
      std::vector<float> expected_output = output;
      for (size_t query = 0; query < kQueries; ++query) {
        for (size_t i = 0; i < head_dimension; ++i) {
          queries[1 + query * query_stride + i] = packed[query * head_dimension + i];
          expected_output[1 + query * output_stride + i] = expected[query * head_dimension + i];
        }
      }
      AttentionArguments arguments =
          sequence.arguments(queries.data() + 1, kQueries, output.data() + 1);
      arguments.query_stride = query_stride;
      arguments.output_stride = output_stride;
      table->attend(arguments);
      EXPECT_EQ(bits_of(output), bits_of(expected_output)) << table->name << head_dimension;
    }
  }
}

TEST(Attention, of_one_token_is_its_value) {
  for (const KernelTable* table : tables_that_run_here()) {
    for (const KvFormat format : kAllKvFormats) {
      const size_t dimension = fitting_dimension(format, 80);
      const PagedSequence sequence(format, dimension, 1, 1500);
      const std::vector<float> output = attend(*table, sequence, random_floats(dimension, 1600), 1);
      for (size_t i = 0; i < dimension; ++i) {
        EXPECT_EQ(output[i], sequence.value(0, i)) << table->name;
      }
    }
  }
}

TEST(Attention, shows_a_nan_of_a_query_to_that_query_alone) {
  for (const KernelTable* table : tables_that_run_here()) {
    const PagedSequence sequence(KvFormat::kF16, 64, 200, 1700);
    std::vector<float> queries = random_floats(size_t{4} * 64, 1800);
    const std::vector<float> clean = attend(*table, sequence, queries, 4);
    queries[2 * 64 + 63] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> output = attend(*table, sequence, queries, 4);
    for (size_t i = 0; i < output.size(); ++i) {
      if (i / 64 == 2) {
        EXPECT_TRUE(std::isnan(output[i])) << table->name;
      } else {
        EXPECT_EQ(output[i], clean[i]) << table->name;
      }
    }
  }
}

TEST(Attention, shows_a_nan_of_a_key) {
  for (const KernelTable* table : tables_that_run_here()) {
    for (const KvFormat format : kAllKvFormats) {
      for (const size_t token : Sizes{0, 70, 199}) {
        PagedSequence sequence(format, 64, 200, 1900);
        sequence.set_key(token, 5, std::numeric_limits<float>::quiet_NaN());
        for (const float value : attend(*table, sequence, random_floats(64, 2000), 1)) {
          EXPECT_TRUE(std::isnan(value)) << table->name << " " << format_name(format);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
