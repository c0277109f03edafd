// Attention in bf16: by its definition bit for bit, one function of a token and its sequence, and
// near what it stands for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/attention_bf16_model.h"
#include "tests/engine/kernels/attention_reference.h"
#include "tests/engine/kernels/bf16_model.h"
#include "tests/engine/kernels/paged_sequence.h"
#include "tests/engine/kernels/software_tiles.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {
namespace {

constexpr double kScale = 0.125;

// Queries of a context's last tokens, and what they get.
class Prompt {
 public:
  Prompt(const PagedSequence& sequence, size_t tokens, size_t queries, size_t window = 0)
      : Prompt(sequence, tokens, queries, GroupTraits{.window = window}) {}
  Prompt(const PagedSequence& sequence, size_t tokens, size_t queries, GroupTraits traits)
      : sequence_(sequence),
        tokens_(tokens),
        queries_(queries),
        traits_(std::move(traits)),
        row_(queries * sequence.head_dimension()),
        values_(random_floats(tokens * row_, 77)) {}

  std::vector<float>& values() { return values_; }
  size_t row() const { return row_; }

  std::vector<float> attend(const KernelTable& table) const { return part(table, 0, tokens_); }

  // The output for `count` of the tokens, from token `first` on.
  std::vector<float> part(const KernelTable& table, size_t first, size_t count) const {
    std::vector<float> output(count * row_, 7.0F);
    AttentionArguments arguments =
        sequence_.arguments(values_.data() + first * row_, queries_, output.data(), tokens_);
    traits_.set(arguments);
    arguments.position += first;
    arguments.token_count = count;
    table.attend_bf16(arguments);
    return output;
  }

  std::vector<float> model(size_t token) const {
    std::vector<float> output;
    for (size_t query = 0; query < queries_; ++query) {
      const float* from = values_.data() + token * row_ + query * sequence_.head_dimension();
      const std::vector<float> one =
          model_attention(sequence_, from, traits_.of(query), position(token));
      output.insert(output.end(), one.begin(), one.end());
    }
    return output;
  }

  size_t position(size_t token) const { return sequence_.context() - tokens_ + token; }

 private:
  const PagedSequence& sequence_;
  size_t tokens_;
  size_t queries_;
  GroupTraits traits_;
  size_t row_;
  std::vector<float> values_;
};

class AttentionBf16 : public testing::Test {
 protected:
  void SetUp() override {
    tables_.push_back(&software_tiles_scalar());
    for (const KernelTable* table : tables_that_run_here()) {
      EXPECT_EQ(table->attend_bf16 != nullptr, table->has_tiles) << table->name;
      if (table->has_tiles) tables_.push_back(table);
    }
  }

  // Some tokens of the prompt against the model, in all tables.
  void expect_model(const Prompt& prompt, const PagedSequence& sequence,
                    const std::vector<size_t>& tokens) const {
    for (const KernelTable* table : tables_) {
      const std::vector<float> output = prompt.attend(*table);
      for (const size_t token : tokens) {
        const std::vector<float> expected = prompt.model(token);
        for (size_t i = 0; i < expected.size(); ++i) {
          ASSERT_TRUE(same_number(output[token * prompt.row() + i], expected[i]))
              << describe(*table, sequence) << ", token " << token << ", element " << i << ": "
              << output[token * prompt.row() + i] << " instead of " << expected[i];
        }
      }
    }
  }

  TileEmulation emulation_;
  std::vector<const KernelTable*> tables_;
};

TEST_F(AttentionBf16, is_its_definition_for_every_format_and_head_dimension) {
  for (const KvFormat format : kAllKvFormats) {
    for (const size_t dimension : Sizes{8, 32, 64, 80, 81, 100, 128, 256, kMaxHeadDimension}) {
      if (!kv_format_fits(format, dimension)) continue;
      for (const size_t context : Sizes{9, 290}) {
        const PagedSequence sequence(format, dimension, context, 100);
        const Prompt prompt(sequence, 9, 4);
        expect_model(prompt, sequence, {0, 5, 8});
      }
    }
  }
}

TEST_F(AttentionBf16, is_its_definition_around_every_border) {
  for (const size_t queries : Sizes{1, 4, 7}) {
    for (const size_t context : Sizes{1, 2, 31, 32, 33, 63, 64, 65, 255, 256, 257, 513}) {
      const PagedSequence sequence(KvFormat::kF16, 32, context, 200);
      for (const size_t tokens : Sizes{1, 2, 4, 5, 8, 9, 16, 17, 33}) {
        if (tokens > context) continue;
        const Prompt prompt(sequence, tokens, queries);
        expect_model(prompt, sequence, {0, tokens / 2, tokens - 1});
      }
    }
  }
}

TEST_F(AttentionBf16, is_its_definition_with_a_window) {
  for (const size_t window : Sizes{1, 20, 32, 64, 100, 256, 300}) {
    const PagedSequence sequence(KvFormat::kBf16, 40, 600, 300);
    const Prompt prompt(sequence, 33, 4, window);
    expect_model(prompt, sequence, {0, 1, 16, 31, 32});
  }
}

TEST_F(AttentionBf16, is_its_definition_with_caps_slopes_sinks_and_sections) {
  for (const GroupTraits& traits : all_group_traits()) {
    for (const size_t context : Sizes{40, 270, 330, 600}) {
      const PagedSequence sequence(KvFormat::kF16, 40, context, 350);
      const Prompt prompt(sequence, 33, 7, traits);
      expect_model(prompt, sequence, {0, 1, 16, 31, 32});
    }
  }
}

// More rows than a block has, whose keys begin in different chunks.
TEST_F(AttentionBf16, is_its_definition_over_several_blocks) {
  for (const size_t dimension : Sizes{64, kMaxHeadDimension}) {
    const PagedSequence sequence(KvFormat::kF16, dimension, 600, 400);
    const Prompt prompt(sequence, 300, 2);
    expect_model(prompt, sequence, {0, 63, 64, 255, 256, 299});
  }
}

// Some probabilities vanish, and the maximum moves from chunk to chunk.
TEST_F(AttentionBf16, is_its_definition_for_peaked_scores) {
  const PagedSequence sequence(KvFormat::kF32, 64, 1100, 500);
  for (const float factor : {40.0F, 1e4F, 1e20F, 1e38F}) {
    Prompt prompt(sequence, 4, 4);
    for (float& value : prompt.values()) value *= factor;
    expect_model(prompt, sequence, {0, 3});
  }
}

TEST_F(AttentionBf16, has_the_same_bits_wherever_a_prompt_is_cut) {
  for (const KvFormat format : kAllKvFormats) {
    std::vector<GroupTraits> some = {{}, {.window = 100}};
    if (format == KvFormat::kF16) some = all_group_traits();
    for (const GroupTraits& traits : some) {
      const PagedSequence sequence(format, 64, 333, 600);
      const Prompt prompt(sequence, 70, 5, traits);
      for (const KernelTable* table : tables_) {
        const auto whole = bits_of(prompt.attend(*table));
        for (const size_t count : Sizes{1, 3, 6, 7, 13, 32, 64, 69}) {
          std::vector<float> parts;
          for (size_t first = 0; first < 70; first += count) {
            const auto part = prompt.part(*table, first, std::min<size_t>(count, 70 - first));
            parts.insert(parts.end(), part.begin(), part.end());
          }
          ASSERT_EQ(bits_of(parts), whole) << describe(*table, sequence) << ", in " << count;
        }
      }
    }
  }
}

// A query's neighbours in its row and tile have nothing to do with it.
TEST_F(AttentionBf16, shows_a_nan_of_a_query_to_that_query_alone) {
  const PagedSequence sequence(KvFormat::kF16, 64, 200, 700);
  Prompt prompt(sequence, 10, 4);
  for (const KernelTable* table : tables_) {
    const std::vector<float> clean = prompt.attend(*table);
    prompt.values()[22 * 64 + 63] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> output = prompt.attend(*table);
    for (size_t i = 0; i < output.size(); ++i) {
      if (i / 64 == 22) {
        EXPECT_TRUE(std::isnan(output[i]));
      } else {
        EXPECT_EQ(output[i], clean[i]);
      }
    }
  }
}

// Keys and values before every window are NaN, as are those after the last token.
TEST_F(AttentionBf16, does_not_see_what_is_outside) {
  for (const KvFormat format : kAllKvFormats) {
    for (const size_t window : Sizes{0, 1, 30, 64, 200}) {
      for (const size_t tokens : Sizes{1, 2, 17}) {
        constexpr size_t kContext = 430;
        const PagedSequence sequence(format, 64, kContext, 800);
        PagedSequence spoiled(format, 64, kContext, 800, 0xFF);
        if (window > 0) spoiled.spoil(0, kContext - tokens + 1 - window);
        const Prompt prompt(sequence, tokens, 3, window);
        const Prompt among(spoiled, tokens, 3, window);
        for (const KernelTable* table : tables_) {
          ASSERT_EQ(bits_of(among.attend(*table)), bits_of(prompt.attend(*table)))
              << describe(*table, sequence) << ", " << tokens << " tokens, window " << window;
        }
      }
    }
  }
}

// Infinities and NaNs are seen by the tokens from theirs on, in the same call, and by no other.
TEST_F(AttentionBf16, ends_at_the_token) {
  constexpr size_t kTokens = 40;
  for (const KvFormat format : kAllKvFormats) {
    for (const size_t context : Sizes{kTokens, 270}) {
      const PagedSequence sequence(format, 64, context, 900);
      for (const size_t clean : Sizes{1, 7, 8, 20, kTokens - 1}) {
        PagedSequence spoiled(format, 64, context, 900);
        spoiled.spoil(context - kTokens + clean, context);
        const Prompt prompt(sequence, kTokens, 3);
        const Prompt among(spoiled, kTokens, 3);
        for (const KernelTable* table : tables_) {
          const std::vector<float> expected = prompt.attend(*table);
          const std::vector<float> output = among.attend(*table);
          for (size_t i = 0; i < output.size(); ++i) {
            if (i < clean * prompt.row()) {
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

// A window leaves NaNs behind that the rows before it still see.
TEST_F(AttentionBf16, begins_at_the_window) {
  constexpr size_t kContext = 300;
  constexpr size_t kTokens = 40;
  for (const size_t window : Sizes{10, 100}) {
    PagedSequence spoiled(KvFormat::kF16, 64, kContext, 950);
    const PagedSequence sequence(KvFormat::kF16, 64, kContext, 950);
    const size_t last = kContext - kTokens + 12 - window;  // the 12th token is the last to see it
    spoiled.spoil(last, last + 1);
    const Prompt prompt(sequence, kTokens, 3, window);
    const Prompt among(spoiled, kTokens, 3, window);
    for (const KernelTable* table : tables_) {
      const std::vector<float> expected = prompt.attend(*table);
      const std::vector<float> output = among.attend(*table);
      for (size_t i = 0; i < output.size(); ++i) {
        const size_t token = i / prompt.row();
        if (prompt.position(token) < last || prompt.position(token) >= last + window) {
          ASSERT_EQ(output[i], expected[i]) << window << ", token " << token;
        } else {
          ASSERT_TRUE(std::isnan(output[i])) << window << ", token " << token;
        }
      }
    }
  }
}

TEST_F(AttentionBf16, of_one_token_is_its_value) {
  for (const KernelTable* table : tables_) {
    const PagedSequence sequence(KvFormat::kBf16, 80, 1, 1500);
    const std::vector<float> output = Prompt(sequence, 1, 3).attend(*table);
    for (size_t i = 0; i < output.size(); ++i) EXPECT_EQ(output[i], sequence.value(0, i % 80));
  }
}

TEST_F(AttentionBf16, takes_rows_of_any_stride_and_writes_nothing_beside_them) {
  for (const size_t dimension : Sizes{8, 48, 81}) {
    const PagedSequence sequence(KvFormat::kF16, dimension, 100, 1300);
    Prompt prompt(sequence, 1, 6);
    const size_t stride = dimension + 3;
    std::vector<float> queries(1 + 6 * stride, 1e30F);
    for (const KernelTable* table : tables_) {
      const std::vector<float> expected = prompt.attend(*table);
      std::vector<float> output(1 + 6 * stride, 7.0F);
      std::vector<float> expected_output = output;
      for (size_t i = 0; i < expected.size(); ++i) {
        queries[1 + i / dimension * stride + i % dimension] = prompt.values()[i];
        expected_output[1 + i / dimension * stride + i % dimension] = expected[i];
      }
      AttentionArguments arguments = sequence.arguments(queries.data() + 1, 6, output.data() + 1);
      arguments.query_stride = stride;
      arguments.output_stride = stride;
      table->attend_bf16(arguments);
      EXPECT_EQ(bits_of(output), bits_of(expected_output)) << table->name << dimension;
    }
  }
}

// With u = 2^-8 the unit roundoff of bf16: a score's queries and keys are both rounded, so that it
// is off by 2 u scale sum |q k|, and so is that of the greatest; a probability is rounded once more
// and a value once. What f32 adds is small beside.
TEST_F(AttentionBf16, is_near_float64) {
  constexpr double kRoundoff = 0x1p-8;
  std::vector<GroupTraits> all = all_group_traits();
  all.emplace_back();
  for (const KvFormat format : kAllKvFormats) {
    for (const size_t context : Sizes{20, 700}) {
      const PagedSequence sequence(format, 64, context, 1700);
      for (const GroupTraits& traits : all) {
        Prompt prompt(sequence, 8, 2, traits);
        for (const KernelTable* table : tables_) {
          const std::vector<float> output = prompt.attend(*table);
          for (size_t row = 0; row < 16; ++row) {
            const float* query = prompt.values().data() + row * 64;
            const size_t position = prompt.position(row / 2);
            const AttentionReference expected =
                attention_reference(sequence, query, traits.of(row % 2), position);
            double score_error = 0.0;
            for (size_t token = 0; token <= position; ++token) {
              double sizes = 0.0;
              for (size_t d = 0; d < 64; ++d) sizes += std::fabs(query[d] * sequence.key(token, d));
              score_error = std::max(score_error, 2.1 * kRoundoff * sizes * kScale);
            }
            // The reference's bound is what f32 gives: a multiple of sum p |v| / sum p.
            for (size_t i = 0; i < 64; ++i) {
              double weighted = 0.0;
              for (size_t token = 0; token <= position; ++token) {
                weighted = std::max(weighted, std::fabs(sequence.value(token, i)));
              }
              ASSERT_NEAR(output[row * 64 + i], expected.output[i],
                          weighted * (2 * std::expm1(2 * score_error) + 3.1 * kRoundoff))
                  << describe(*table, sequence) << ", row " << row << ", dimension " << i;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
