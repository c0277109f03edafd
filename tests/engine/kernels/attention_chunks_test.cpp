// That attention is one function of a token and its sequence: with any tokens and queries beside
// it, in chunks or whole, with a window or without.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/attention_reference.h"
#include "tests/engine/kernels/paged_sequence.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {
namespace {

constexpr size_t kMostTokens = 33;
constexpr size_t kWindows[] = {0, 1, 20, 64, 100, 256, 300};

// Partial results of some chunks, that hold NaN before they are computed.
class PartialResults {
 public:
  PartialResults(size_t count, size_t floats)
      : floats_(floats), values_(count * floats + 16, std::numeric_limits<float>::quiet_NaN()) {
    while (reinterpret_cast<uintptr_t>(values_.data() + offset_) % 64 != 0) ++offset_;
  }
  float* at(size_t index) { return values_.data() + offset_ + index * floats_; }

 private:
  size_t floats_;
  size_t offset_ = 0;
  std::vector<float> values_;
};

// Queries of the context's last tokens, and what they get.
struct Queries {
  Queries(const PagedSequence& sequence, size_t tokens, size_t count)
      : sequence_(sequence),
        token_count(tokens),
        query_count(count),
        values(random_floats(tokens * count * sequence.head_dimension(), 77)) {}

  // The arguments for the last `tokens` tokens.
  AttentionArguments arguments(size_t tokens, size_t window, std::vector<float>& output) const {
    const size_t row = query_count * sequence_.head_dimension();
    output.assign(tokens * row, 0.0F);
    AttentionArguments arguments = sequence_.arguments(values.data() + (token_count - tokens) * row,
                                                       query_count, output.data(), tokens);
    traits.set(arguments);
    if (window != 0) arguments.window = window;
    return arguments;
  }

  std::vector<float> attend(const KernelTable& table, size_t tokens, size_t window) const {
    std::vector<float> output;
    table.attend(arguments(tokens, window, output));
    return output;
  }

  // Each of all tokens by itself.
  std::vector<float> attend_alone(const KernelTable& table, size_t window) const {
    std::vector<float> whole;
    std::vector<float> output;
    for (size_t token = 0; token < token_count; ++token) {
      AttentionArguments one = arguments(token_count - token, window, output);
      one.token_count = 1;
      table.attend(one);
      const auto row = static_cast<ptrdiff_t>(query_count * sequence_.head_dimension());
      whole.insert(whole.end(), output.begin(), output.begin() + row);
    }
    return whole;
  }

  // Attends for the last token, chunk by chunk.
  std::vector<float> attend_in_chunks(const KernelTable& table, size_t window) const {
    std::vector<float> output;
    const AttentionArguments one = arguments(1, window, output);
    const size_t stride = attention_partial_floats(query_count, sequence_.head_dimension()) + 16;
    const AttentionChunks chunks = attention_chunks(one.position, one.window, one.section);
    PartialResults partials(chunks.end - chunks.begin, stride);
    // Any order will do.
    for (size_t chunk = chunks.end; chunk-- > chunks.begin;) {
      table.attend_chunk(one, chunk, partials.at(chunk - chunks.begin));
    }
    table.merge_chunks(one, partials.at(0), stride);
    return output;
  }

 private:
  const PagedSequence& sequence_;

 public:
  size_t token_count;
  size_t query_count;
  std::vector<float> values;
  GroupTraits traits = {};
};

std::vector<uint32_t> last_bits(const std::vector<float>& values, size_t count) {
  return bits_of({values.end() - static_cast<ptrdiff_t>(count), values.end()});
}

TEST(AttentionChunks, are_those_that_hold_a_seen_key) {
  for (const size_t position : Sizes{0, 1, 255, 256, 257, 511, 512, 5000}) {
    for (const size_t window : Sizes{0, 1, 2, 255, 256, 257, 4096, SIZE_MAX}) {
      const size_t first = window == 0 || window > position ? 0 : position + 1 - window;
      const AttentionChunks chunks = attention_chunks(position, window);
      EXPECT_EQ(chunks.begin, first / kAttentionChunkTokens) << position << ", window " << window;
      EXPECT_EQ(chunks.end, position / kAttentionChunkTokens + 1) << position;
      const size_t section = first + 1;  // sections that begin in and behind the window
      EXPECT_EQ(attention_chunks(position, window, section).begin,
                std::max(first, position - position % section) / kAttentionChunkTokens);
    }
  }
}

TEST(AttentionChunks, partial_results_take_whole_lines) {
  for (const size_t queries : Sizes{1, 3, 16, 17, kMaxQueryGroup}) {
    for (const size_t dimension : Sizes{1, 8, 64, 100, kMaxHeadDimension}) {
      const size_t floats = attention_partial_floats(queries, dimension);
      EXPECT_EQ(floats % 16, 0U);
      EXPECT_GE(floats, queries * (dimension + 2));
    }
  }
}

// With every number of tokens, around the borders of pages and chunks.
TEST(AttentionChunks, give_a_token_the_same_bits_with_any_tokens_before_it) {
  for (const KvFormat format : kAllKvFormats) {
    for (const size_t context : Sizes{33, 64, 80, 256, 270, 290, 600}) {
      const PagedSequence sequence(format, fitting_dimension(format, 48), context, 3);
      for (const size_t query_count : Sizes{1, 3, 4}) {
        const Queries queries(sequence, kMostTokens, query_count);
        for (const size_t window : kWindows) {
          const KernelTable& scalar = *all_kernel_tables().front();
          const std::vector<float> expected = queries.attend_alone(scalar, window);
          for (const KernelTable* table : tables_that_run_here()) {
            for (size_t tokens = 1; tokens <= kMostTokens; ++tokens) {
              if (table == &scalar && tokens % 11 != 0) continue;
              const std::vector<float> output = queries.attend(*table, tokens, window);
              ASSERT_EQ(bits_of(output), last_bits(expected, output.size()))
                  << describe(*table, sequence) << ", " << tokens << " tokens, window " << window;
            }
          }
        }
      }
    }
  }
}

// Blocks of rows that are full, of other dimensions, and of the largest group.
TEST(AttentionChunks, give_a_token_the_same_bits_among_many) {
  struct Case {
    KvFormats format;
    size_t head_dimension;
    size_t query_count;
    size_t tokens;
  };
  for (const Case& one : {Case{KvFormat::kF16, 64, 4, 150}, Case{KvFormat::kBf16, 128, 8, 70},
                          Case{KvFormat::kF32, 128, 4, 33}, Case{KvFormat::kQ8_0, 64, 4, 150},
                          Case{KvFormat::kF16, 256, 2, 60}, Case{KvFormat::kQ8_0, 512, 1, 40},
                          Case{KvFormat::kF16, 512, 64, 3}, Case{KvFormat::kF16, 576, 16, 12},
                          Case{KvFormat::kF16, 80, 5, 64}, Case{KvFormat::kQ8_0, 96, 6, 50},
                          Case{KvFormat::kBf16, 100, 7, 41}, Case{KvFormat::kQ4_0, 128, 8, 70},
                          Case{KvFormat::kQ4_0, 96, 3, 150}}) {
    const PagedSequence sequence(one.format, one.head_dimension, 400, 5);
    const Queries queries(sequence, one.tokens, one.query_count);
    for (const size_t window : Sizes{0, 70}) {
      std::vector<float> expected;
      for (const KernelTable* table : tables_that_run_here()) {
        const std::vector<float> alone = queries.attend_alone(*table, window);
        if (expected.empty()) expected = alone;
        ASSERT_EQ(bits_of(alone), bits_of(expected)) << describe(*table, sequence);
        ASSERT_EQ(bits_of(queries.attend(*table, one.tokens, window)), bits_of(expected))
            << describe(*table, sequence) << ", window " << window;
      }
    }
  }
}

// Keys and values in different formats: a token's bits are those of itself alone, on every table.
TEST(AttentionChunks, give_the_same_bits_of_keys_and_values_in_different_formats) {
  for (const KvFormats& format : kMixedKvFormats) {
    for (const size_t query_count : Sizes{1, 6}) {
      const PagedSequence sequence(format, 96, 600, 27);
      const Queries queries(sequence, 40, query_count);
      std::vector<float> expected;
      for (const KernelTable* table : tables_that_run_here()) {
        const std::vector<float> alone = queries.attend_alone(*table, 0);
        if (expected.empty()) expected = alone;
        ASSERT_EQ(bits_of(alone), bits_of(expected)) << describe(*table, sequence);
        ASSERT_EQ(bits_of(queries.attend(*table, 40, 0)), bits_of(expected))
            << describe(*table, sequence);
      }
    }
  }
}

TEST(AttentionChunks, merged_are_the_whole) {
  for (const KvFormat format : kAllKvFormats) {
    for (const size_t head_dimension : Sizes{8, 64, 100, kMaxHeadDimension}) {
      if (!kv_format_fits(format, head_dimension)) continue;
      for (const size_t context : Sizes{1, 64, 255, 256, 257, 500, 1100}) {
        const PagedSequence sequence(format, head_dimension, context, 7);
        for (const size_t query_count : Sizes{1, 4, 17, kMaxQueryGroup}) {
          const Queries queries(sequence, 1, query_count);
          for (const KernelTable* table : tables_that_run_here()) {
            if (table->name == "scalar" && query_count > 4) continue;
            for (const size_t window : Sizes{0, 1, 64, 300}) {
              ASSERT_EQ(bits_of(queries.attend_in_chunks(*table, window)),
                        bits_of(queries.attend(*table, 1, window)))
                  << describe(*table, sequence) << ", " << query_count << " queries, window "
                  << window;
            }
          }
        }
      }
    }
  }
}

TEST(AttentionWindow, is_near_float64_in_every_table) {
  for (const KvFormat format : kAllKvFormats) {
    const size_t dimension = fitting_dimension(format, 72);
    for (const size_t context : Sizes{5, 64, 257, 350, 700}) {
      const PagedSequence sequence(format, dimension, context, 9);
      const Queries queries(sequence, std::min<size_t>(context, 9), 2);
      for (const size_t window : kWindows) {
        for (const KernelTable* table : tables_that_run_here()) {
          const std::vector<float> output = queries.attend(*table, queries.token_count, window);
          for (size_t row = 0; row < output.size() / dimension; ++row) {
            const size_t position = context - queries.token_count + row / 2;
            const AttentionReference expected = attention_reference(
                sequence, queries.values.data() + row * dimension, 0.125, position, window);
            for (size_t i = 0; i < dimension; ++i) {
              ASSERT_NEAR(output[row * dimension + i], expected.output[i], expected.bound[i])
                  << describe(*table, sequence) << ", position " << position << ", window "
                  << window;
            }
          }
        }
      }
    }
  }
}

TEST(AttentionWindow, of_one_token_is_its_value) {
  const PagedSequence sequence(KvFormat::kBf16, 40, 300, 11);
  const Queries queries(sequence, kMostTokens, 1);
  for (const KernelTable* table : tables_that_run_here()) {
    const std::vector<float> output = queries.attend(*table, kMostTokens, 1);
    for (size_t i = 0; i < output.size(); ++i) {
      EXPECT_EQ(output[i], sequence.value(300 - kMostTokens + i / 40, i % 40)) << table->name;
    }
  }
}

TEST(AttentionWindow, wider_than_the_context_is_none) {
  const PagedSequence sequence(KvFormat::kF16, 64, 300, 13);
  const Queries queries(sequence, kMostTokens, 2);
  for (const KernelTable* table : tables_that_run_here()) {
    const auto expected = bits_of(queries.attend(*table, kMostTokens, 0));
    for (const size_t window : {size_t{300}, size_t{301}, SIZE_MAX}) {
      EXPECT_EQ(bits_of(queries.attend(*table, kMostTokens, window)), expected) << table->name;
    }
  }
}

// Keys and values before every window are NaN, as are those after the last token; pages that hold
// nothing else have numbers that no page has.
TEST(AttentionWindow, hides_what_is_outside) {
  for (const KvFormat format : kAllKvFormats) {
    for (const size_t window : Sizes{1, 30, 64, 200}) {
      for (const size_t tokens : Sizes{1, 2, 17, kMostTokens}) {
        constexpr size_t kContext = 700;
        PagedSequence sequence(format, 64, kContext, 15);
        const Queries queries(sequence, tokens, 3);
        for (const KernelTable* table : tables_that_run_here()) {
          const auto expected = bits_of(queries.attend(*table, tokens, window));
          PagedSequence spoiled = PagedSequence(format, 64, kContext, 15);
          const size_t first = kContext - tokens + 1 - window;
          spoiled.spoil(0, first);
          std::vector<uint32_t> pages = spoiled.pages();
          std::fill(pages.begin(), pages.begin() + static_cast<ptrdiff_t>(first / kPageTokens),
                    0x7FFFFFFFU);
          std::vector<float> output(queries.values.size());
          AttentionArguments arguments =
              spoiled.arguments(queries.values.data(), 3, output.data(), tokens);
          arguments.pages = pages.data();
          arguments.window = window;
          table->attend(arguments);
          ASSERT_EQ(bits_of(output), expected)
              << describe(*table, sequence) << ", " << tokens << " tokens, window " << window;
        }
      }
    }
  }
}

// A token does not see those after it, whatever they are, though they are in the same call.
TEST(AttentionWindow, ends_at_the_token) {
  for (const KvFormat format : kAllKvFormats) {
    for (const size_t context : Sizes{40, 270}) {
      PagedSequence sequence(format, 64, context, 17);
      const Queries queries(sequence, kMostTokens, 2);
      for (const KernelTable* table : tables_that_run_here()) {
        const std::vector<float> expected = queries.attend(*table, kMostTokens, 0);
        for (const size_t clean : Sizes{1, 16, 20, kMostTokens - 1}) {
          PagedSequence spoiled(format, 64, context, 17);
          spoiled.spoil(context - kMostTokens + clean, context);
          std::vector<float> output(queries.values.size());
          table->attend(spoiled.arguments(queries.values.data(), 2, output.data(), kMostTokens));
          for (size_t i = 0; i < output.size(); ++i) {
            if (i < clean * 2 * 64) {
              ASSERT_EQ(output[i], expected[i]) << describe(*table, sequence) << clean;
            } else {
              ASSERT_TRUE(std::isnan(output[i])) << describe(*table, sequence) << clean;
            }
          }
        }
      }
    }
  }
}

TEST(AttentionChunks, look_up_their_own_pages_alone) {
  const PagedSequence sequence(KvFormat::kF16, 64, 900, 19);
  const Queries queries(sequence, 1, 4);
  const size_t floats = attention_partial_floats(4, 64);
  for (const KernelTable* table : tables_that_run_here()) {
    std::vector<float> output;
    AttentionArguments arguments = queries.arguments(1, 0, output);
    for (size_t chunk = 0; chunk < 4; ++chunk) {
      PartialResults expected(1, floats);
      arguments.pages = sequence.pages().data();
      table->attend_chunk(arguments, chunk, expected.at(0));
      std::vector<uint32_t> pages(sequence.page_count(), 0x7FFFFFFFU);
      const size_t first = chunk * kAttentionChunkTokens / kPageTokens;
      for (size_t page = first; page < std::min(first + 4, pages.size()); ++page) {
        pages[page] = sequence.pages()[page];
      }
      PartialResults partial(1, floats);
      arguments.pages = pages.data();
      table->attend_chunk(arguments, chunk, partial.at(0));
      // The maximums, the sums, and the output.
      for (const size_t place : Sizes{0, 3, 16, 19, 32, 32 + 4 * 64 - 1}) {
        EXPECT_EQ(partial.at(0)[place], expected.at(0)[place]) << table->name << chunk << place;
      }
    }
  }
}

TEST(AttentionTraits, are_near_float64_with_the_same_bits_in_every_table_and_in_any_pieces) {
  for (const KvFormat format : kAllKvFormats) {
    const size_t dimension = fitting_dimension(format, 40);
    for (const size_t context : Sizes{5, 64, 257, 330, 700}) {
      const PagedSequence sequence(format, dimension, context, 21);
      Queries queries(sequence, std::min<size_t>(context, 17), 7);
      for (const GroupTraits& traits : all_group_traits()) {
        queries.traits = traits;
        const std::vector<float> alone = queries.attend_alone(scalar_kernel_table(), 0);
        for (size_t row = 0; row < alone.size() / dimension; ++row) {
          const size_t position = context - queries.token_count + row / 7;
          const float* query = queries.values.data() + row * dimension;
          const AttentionReference expected =
              attention_reference(sequence, query, traits.of(row % 7), position);
          for (size_t i = 0; i < dimension; ++i) {
            ASSERT_NEAR(alone[row * dimension + i], expected.output[i], expected.bound[i])
                << format_name(format) << ", position " << position << ", query " << row % 7;
          }
        }
        for (const KernelTable* table : tables_that_run_here()) {
          ASSERT_EQ(bits_of(queries.attend(*table, queries.token_count, 0)), bits_of(alone))
              << describe(*table, sequence);
          const std::vector<float> last = queries.attend_in_chunks(*table, 0);
          ASSERT_EQ(bits_of(last), last_bits(alone, last.size())) << describe(*table, sequence);
        }
      }
    }
  }
}

TEST(AttentionTraits, that_change_nothing_are_none) {
  const PagedSequence sequence(KvFormat::kF16, 64, 300, 23);
  Queries queries(sequence, kMostTokens, 3);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const KernelTable* table : tables_that_run_here()) {
    queries.traits = {};
    const auto expected = bits_of(queries.attend(*table, kMostTokens, 0));
    for (const GroupTraits& traits : {GroupTraits{.slopes = {0, 0, 0}}, GroupTraits{.section = 301},
                                      GroupTraits{.sinks = {-kInfinity, -kInfinity, -kInfinity}}}) {
      queries.traits = traits;
      EXPECT_EQ(bits_of(queries.attend(*table, kMostTokens, 0)), expected) << table->name;
    }
  }
}

TEST(AttentionTraits, a_sink_takes_its_part_of_its_own_query) {
  const PagedSequence sequence(KvFormat::kF16, 64, 300, 25);
  Queries queries(sequence, 1, 3);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const KernelTable* table : tables_that_run_here()) {
    queries.traits = {};
    const std::vector<float> without = queries.attend(*table, 1, 0);
    queries.traits.sinks = {-200.0F, kNan, 300.0F};
    const std::vector<float> output = queries.attend(*table, 1, 0);
    for (size_t i = 0; i < 64; ++i) {
      EXPECT_EQ(output[i], without[i]) << table->name;
      EXPECT_TRUE(std::isnan(output[64 + i])) << table->name;
      EXPECT_EQ(output[128 + i], 0.0F) << table->name;
    }
    EXPECT_EQ(bits_of(queries.attend_in_chunks(*table, 0)), bits_of(output)) << table->name;
  }
}

// Keys and values of earlier sections are NaN, and pages that hold nothing else have numbers that
// no page has; tokens of an earlier section are in the same call.
TEST(AttentionSections, hide_what_is_before) {
  constexpr size_t kContext = 700;
  for (const KvFormat format : kAllKvFormats) {
    const PagedSequence sequence(format, 64, kContext, 27);
    for (const size_t section : Sizes{64, 100, 256, 340, 690}) {
      const size_t first = (kContext - 1) / section * section;
      for (const size_t tokens : Sizes{1, kMostTokens}) {
        Queries queries(sequence, tokens, 3);
        queries.traits.section = section;
        for (const KernelTable* table : tables_that_run_here()) {
          const std::vector<float> expected = queries.attend(*table, tokens, 0);
          PagedSequence spoiled(format, 64, kContext, 27);
          spoiled.spoil(0, first);
          std::vector<uint32_t> pages = spoiled.pages();
          std::vector<float> output(queries.values.size());
          AttentionArguments arguments =
              spoiled.arguments(queries.values.data(), 3, output.data(), tokens);
          queries.traits.set(arguments);
          if (kContext - tokens >= first) {
            std::fill_n(pages.begin(), first / kPageTokens, 0x7FFFFFFFU);
            arguments.pages = pages.data();
          }
          table->attend(arguments);
          for (size_t i = 0; i < output.size(); ++i) {
            const size_t position = kContext - tokens + i / (3 * 64);
            if (position >= first) {
              ASSERT_EQ(output[i], expected[i]) << describe(*table, sequence) << section;
            } else {
              ASSERT_TRUE(std::isnan(output[i])) << describe(*table, sequence) << section;
            }
          }
        }
      }
    }
  }
}

TEST(AttentionSections, begin_with_a_token_that_sees_itself_alone) {
  const PagedSequence sequence(KvFormat::kBf16, 40, 300, 29);
  Queries queries(sequence, kMostTokens, 1);
  queries.traits.section = 10;
  for (const KernelTable* table : tables_that_run_here()) {
    const std::vector<float> output = queries.attend(*table, kMostTokens, 0);
    for (size_t i = 0; i < output.size(); ++i) {
      const size_t position = 300 - kMostTokens + i / 40;
      if (position % 10 != 0) continue;
      EXPECT_EQ(output[i], sequence.value(position, i % 40)) << table->name;
    }
  }
}

}  // namespace
}  // namespace lockstep
