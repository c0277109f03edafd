#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/format.h"
#include "tests/engine/kernels/paged_sequence.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {
namespace {

// One page's blocks of one KV head.
struct Page {
  Page(const KvFormats& format, size_t head_dimension, uint8_t filler)
      : keys(key_block_bytes(format.keys, head_dimension), std::byte{filler}),
        values(value_block_bytes(format.values, head_dimension), std::byte{filler}) {}

  std::vector<std::byte> keys;
  std::vector<std::byte> values;
};

// The bytes of an element in a format that stores each by itself.
size_t element_bytes(KvFormat format) {
  return format == KvFormat::kF32 ? 4 : 2;
}

uint32_t element_bits(KvFormat format, const std::vector<std::byte>& block, size_t index) {
  uint32_t bits = 0;
  std::memcpy(&bits, block.data() + index * element_bytes(format), element_bytes(format));
  return bits;
}

uint32_t stored_bits(KvFormat format, float value) {
  switch (format) {
    case KvFormat::kF32:
      return std::bit_cast<uint32_t>(value);
    case KvFormat::kF16:
      return float_to_half(value);
    case KvFormat::kBf16:
      return float_to_bf16(value);
    case KvFormat::kQ8_0:
    case KvFormat::kQ4_0:
    case KvFormat::kQ4H:
      break;
  }
  return 0;
}

// Numbers whose rounding is hard: ties, the borders of the formats, infinities, NaN.
std::vector<float> hard_floats(size_t count, uint32_t seed) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> hard = {0.0F,
                                   -0.0F,
                                   1.0F + 0x1p-11F,
                                   1.0F + 0x1p-8F,
                                   1.0F + 0x1.8p-7F,
                                   65504.0F,
                                   65519.0F,
                                   65520.0F,
                                   -65536.0F,
                                   0x1p-14F,
                                   0x1p-24F,
                                   0x1p-25F,
                                   0x1.8p-25F,
                                   0x1p-26F,
                                   3e38F,
                                   0x1.FFFFFEp127F,
                                   kInfinity,
                                   -kInfinity,
                                   0x1p-126F,
                                   0x1p-149F,
                                   std::numeric_limits<float>::quiet_NaN(),
                                   std::bit_cast<float>(0xFFFFFFFFU)};
  std::vector<float> values = random_floats(count, seed);
  for (size_t i = 0; i < count; i += 2) values[i] = hard[(i / 2 + seed) % hard.size()];
  return values;
}

void expect_stored(KvFormat format, size_t head_dimension, size_t slot,
                   const std::vector<float>& key, const std::vector<float>& value, const Page& page,
                   uint8_t filler, const std::string& what) {
  const size_t value_row = (head_dimension + 15) / 16 * 16;
  uint32_t untouched = 0;
  std::memset(&untouched, filler, element_bytes(format));
  for (size_t token = 0; token < kPageTokens; ++token) {
    for (size_t i = 0; i < head_dimension; ++i) {
      const uint32_t key_bits = token == slot ? stored_bits(format, key[i]) : untouched;
      const uint32_t value_bits = token == slot ? stored_bits(format, value[i]) : untouched;
      ASSERT_EQ(element_bits(format, page.keys, i * kPageTokens + token), key_bits)
          << what << ", key of slot " << token << ", dimension " << i << ", " << key[i];
      ASSERT_EQ(element_bits(format, page.values, token * value_row + i), value_bits)
          << what << ", value of slot " << token << ", dimension " << i << ", " << value[i];
    }
  }
}

TEST(AppendKv, stores_one_token_as_the_page_layout_says_and_touches_no_other) {
  for (const KernelTable* table : all_kernel_tables()) {
    if (!runs_here(*table)) continue;
    for (const KvFormat format : {KvFormat::kF32, KvFormat::kF16, KvFormat::kBf16}) {
      for (const size_t head_dimension : Sizes{1, 8, 48, 64, 100}) {
        for (const size_t slot : Sizes{0, 1, 31, 63}) {
          const auto seed = static_cast<uint32_t>(slot);
          const std::vector<float> key = hard_floats(head_dimension, seed);
          const std::vector<float> value = hard_floats(head_dimension, seed + 1);
          Page page(format, head_dimension, 0xA5);
          table->append_kv({format, head_dimension, head_dimension, key.data(), value.data()}, slot,
                           page.keys.data(), page.values.data());
          expect_stored(format, head_dimension, slot, key, value, page, 0xA5,
                        std::string(table->name) + " " + format_name(format));
        }
      }
    }
  }
}

// Blocks of 32 that are hard to quantize.
std::vector<std::vector<float>> hard_blocks() {
  std::vector<std::vector<float>> blocks;
  for (const float size : {1.0F, 3e-3F, 1e-3F, 1e-5F, 3e-6F, 1e-9F, 1e-42F, 4e4F, 8e6F, 1e9F}) {
    blocks.push_back(random_floats(kKvBlockDimensions, static_cast<uint32_t>(blocks.size())));
    for (float& value : blocks.back()) value *= size;
  }
  // Ties, with a scale of exactly 1 and of a quarter; one number in the second half alone; none.
  std::vector<float> ties(kKvBlockDimensions);
  for (size_t i = 0; i < ties.size(); ++i) ties[i] = static_cast<float>(i) * 2.0F - 30.5F;
  ties[5] = -127.0F;
  blocks.push_back(ties);
  for (float& value : ties) value /= 4.0F;
  blocks.push_back(ties);
  blocks.emplace_back(kKvBlockDimensions, 0.0F);
  blocks.back()[30] = -5.0F;
  blocks.emplace_back(kKvBlockDimensions, 0.0F);
  // Values that are no finite number, in either half.
  for (const float value :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    for (const size_t place : Sizes{3, 31}) {
      blocks.push_back(random_floats(kKvBlockDimensions, 9));
      blocks.back()[place] = value;
    }
  }
  return blocks;
}

void expect_scale(uint16_t stored, uint16_t expected, const std::string& what) {
  if (std::isnan(half_to_float(expected))) {
    EXPECT_TRUE(std::isnan(half_to_float(stored))) << what;
  } else {
    EXPECT_EQ(stored, expected) << what;
  }
}

// Puts a block's quants and its scale where the page should have them; the scale of a block that is
// not finite may be any NaN.
class ExpectedQuants {
 public:
  ExpectedQuants(KvFormat format, size_t head_dimension, std::vector<std::byte> block)
      : format_(format),
        scales_(kv_quant_bytes(format, head_dimension)),
        block_(std::move(block)) {}

  void set(const KvQuants& numbers, const std::vector<KvQuantPlace>& places) {
    for (size_t i = 0; i < kKvBlockDimensions; ++i) {
      std::byte& byte = block_[places[i].byte];
      if (format_ == KvFormat::kQ8_0) {
        byte = static_cast<std::byte>(numbers.quants[i]);
        continue;
      }
      byte &= ~(std::byte{15} << places[i].bit);
      byte |= static_cast<std::byte>(static_cast<unsigned>(numbers.quants[i] + 8) << places[i].bit);
    }
  }
  void set_scale(size_t index, uint16_t expected, const std::vector<std::byte>& stored,
                 const std::string& what) {
    uint16_t scale = 0;
    std::memcpy(&scale, &stored[scales_ + index * 2], 2);
    expect_scale(scale, expected, what);
    std::memcpy(&block_[scales_ + index * 2], &scale, 2);
  }
  const std::vector<std::byte>& block() const { return block_; }

 private:
  KvFormat format_;
  size_t scales_;
  std::vector<std::byte> block_;
};

void expect_quantized(const KernelTable& table, KvFormat format, size_t slot) {
  const std::vector<std::vector<float>> blocks = hard_blocks();
  const size_t count = blocks.size();
  const size_t head_dimension = count * kKvBlockDimensions;
  ASSERT_LE(head_dimension, 1024U);
  std::vector<float> key;
  std::vector<float> value;
  for (size_t block = 0; block < count; ++block) {
    key.insert(key.end(), blocks[block].begin(), blocks[block].end());
    const auto& other = blocks[count - 1 - block];
    value.insert(value.end(), other.begin(), other.end());
  }
  Page page(format, head_dimension, 0xA5);
  ExpectedQuants keys(format, head_dimension, page.keys);
  ExpectedQuants values(format, head_dimension, page.values);
  table.append_kv({format, head_dimension, head_dimension, key.data(), value.data()}, slot,
                  page.keys.data(), page.values.data());
  for (size_t block = 0; block < count; ++block) {
    const std::string what = std::string(table.name) + " " + format_name(format) + ", block " +
                             std::to_string(block) + ", slot " + std::to_string(slot);
    const size_t begin = block * kKvBlockDimensions;
    std::vector<KvQuantPlace> key_places;
    std::vector<KvQuantPlace> value_places;
    for (size_t i = begin; i < begin + kKvBlockDimensions; ++i) {
      key_places.push_back(place_of_key(format, i, slot));
      value_places.push_back(place_of_value(format, head_dimension, i, slot));
    }
    const KvQuants of_key = quantize_kv(format, &key[begin]);
    const KvQuants of_value = quantize_kv(format, &value[begin]);
    keys.set(of_key, key_places);
    keys.set_scale(block * kPageTokens + slot, of_key.scale, page.keys, what);
    values.set(of_value, value_places);
    values.set_scale(slot * count + block, of_value.scale, page.values, what);
  }
  EXPECT_EQ(page.keys, keys.block()) << table.name << " " << slot;
  EXPECT_EQ(page.values, values.block()) << table.name << " " << slot;
}

// Keys from the blocks, values from the same in reverse order; nothing else in the page changes.
TEST(AppendKv, quantizes_blocks_of_32) {
  for (const KernelTable* table : all_kernel_tables()) {
    if (!runs_here(*table)) continue;
    for (const KvFormat format : {KvFormat::kQ8_0, KvFormat::kQ4_0, KvFormat::kQ4H}) {
      for (const size_t slot : Sizes{0, 17, 63}) expect_quantized(*table, format, slot);
    }
  }
}

// The bounds that attention.h states.
TEST(AppendKv, quantized_elements_are_near_what_they_were) {
  for (const KvFormat format : {KvFormat::kQ8_0, KvFormat::kQ4_0}) {
    const double most = format == KvFormat::kQ8_0 ? 127 : 8;
    for (const std::vector<float>& block : hard_blocks()) {
      const KvQuants numbers = quantize_kv(format, block.data());
      const double scale = half_to_float(numbers.scale);
      if (std::isnan(scale)) continue;
      const bool is_whole = format == KvFormat::kQ4_0;  // the steps that it may be off
      for (size_t i = 0; i < kKvBlockDimensions; ++i) {
        if (std::fabs(block[i]) > most * 65504.0) continue;
        const bool is_opposite = is_whole && block[i] / scale > 7.5;
        const double step = std::fabs(scale) * (is_opposite ? 1 : 0.5);
        EXPECT_NEAR(scale * numbers.quants[i], block[i],
                    std::max(step * (1 + 0x1p-9), most * 0x1p-25))
            << format_name(format);
      }
    }
  }
}

// A page that append_kv has filled, read by attend, is the one the reference sequence has.
TEST(AppendKv, stores_what_attend_reads) {
  for (const KernelTable* table : all_kernel_tables()) {
    if (!runs_here(*table)) continue;
    std::vector<KvFormats> formats(std::begin(kAllKvFormats), std::end(kAllKvFormats));
    formats.insert(formats.end(), std::begin(kMixedKvFormats), std::end(kMixedKvFormats));
    for (const KvFormats& format : formats) {
      const size_t head_dimension = fitting_dimension(format, 72);
      const PagedSequence sequence(format, head_dimension, 40, 1);
      const std::vector<float> query = random_floats(head_dimension, 2);
      std::vector<float> expected(head_dimension);
      AttentionArguments arguments = sequence.arguments(query.data(), 1, expected.data());
      table->attend(arguments);

      Page page(format, head_dimension, 0xFF);
      for (size_t token = 0; token < sequence.context(); ++token) {
        // From an odd address: rows of keys may lie anywhere.
        std::vector<float> key(head_dimension + 1);
        std::vector<float> value(head_dimension + 1);
        for (size_t i = 0; i < head_dimension; ++i) {
          key[i + 1] = static_cast<float>(sequence.key(token, i));
          value[i + 1] = static_cast<float>(sequence.value(token, i));
        }
        table->append_kv({format, head_dimension, head_dimension, key.data() + 1, value.data() + 1},
                         token, page.keys.data(), page.values.data());
      }
      std::vector<float> output(head_dimension);
      const uint32_t page_number = 0;
      arguments.keys = page.keys.data();
      arguments.values = page.values.data();
      arguments.pages = &page_number;
      arguments.output = output.data();
      table->attend(arguments);
      EXPECT_EQ(output, expected) << table->name << " " << format_name(format);
    }
  }
}

// Some tokens' keys and values of one page, and attention over them.
class SmallPage {
 public:
  SmallPage(const KernelTable& table, KvFormat format, size_t key_dimension, size_t value_dimension)
      : table_(table),
        format_(format),
        key_dimension_(key_dimension),
        value_dimension_(value_dimension),
        keys_(key_block_bytes(format, key_dimension)),
        values_(value_block_bytes(format, value_dimension)) {}

  // The first dimensions of a key and a value.
  void append(size_t slot, const float* key, const float* value) {
    table_.append_kv({format_, key_dimension_, value_dimension_, key, value}, slot, keys_.data(),
                     values_.data());
  }

  // By a whole and by its only chunk.
  std::vector<float> attend(const std::vector<float>& queries, size_t count, size_t stride,
                            size_t tokens, bool in_chunks) const {
    std::vector<float> output(count * value_dimension_);
    const uint32_t page = 0;
    const AttentionArguments arguments = {.format = format_,
                                          .head_dimension = key_dimension_,
                                          .value_dimension = value_dimension_,
                                          .keys = keys_.data(),
                                          .values = values_.data(),
                                          .pages = &page,
                                          .position = tokens - 1,
                                          .queries = queries.data(),
                                          .query_stride = stride,
                                          .query_token_stride = count * stride,
                                          .query_count = count,
                                          .scale = 0.25F,
                                          .output = output.data(),
                                          .output_stride = value_dimension_,
                                          .output_token_stride = count * value_dimension_};
    if (!in_chunks) {
      table_.attend(arguments);
      return output;
    }
    std::vector<float> partial(attention_partial_floats(count, value_dimension_) + 16);
    float* const aligned =
        partial.data() +
        (64 - reinterpret_cast<uintptr_t>(partial.data()) % 64) / sizeof(float) % 16;
    table_.attend_chunk(arguments, 0, aligned);
    table_.merge_chunks(arguments, aligned, attention_partial_floats(count, value_dimension_));
    return output;
  }

 private:
  struct Aligned {
    alignas(64) std::byte bytes[64];
  };
  class Blocks {
   public:
    explicit Blocks(size_t bytes) : lines_(bytes / sizeof(Aligned)) {}
    std::byte* data() { return lines_.front().bytes; }
    const std::byte* data() const { return lines_.front().bytes; }

   private:
    std::vector<Aligned> lines_;
  };

  const KernelTable& table_;
  KvFormat format_;
  size_t key_dimension_;
  size_t value_dimension_;
  Blocks keys_;
  Blocks values_;
};

// Dimensions of zeros change nothing: what heads of equal dimensions give, of which some are zeros,
// those of different dimensions give without them.
TEST(AppendKv, keys_and_values_may_have_different_dimensions) {
  constexpr size_t kTokens = 40;
  constexpr size_t kQueries = 20;
  for (const KernelTable* table : all_kernel_tables()) {
    if (!runs_here(*table)) continue;
    for (const KvFormat format : kAllKvFormats) {
      for (const auto& [some_keys, some_values] :
           {std::pair<size_t, size_t>{64, 32}, {40, 100}, {192, 128}, {32, 512}}) {
        const size_t of_key = fitting_dimension(format, some_keys);
        const size_t of_value = fitting_dimension(format, some_values);
        const size_t widest = std::max(of_key, of_value);
        SmallPage page(*table, format, of_key, of_value);
        SmallPage equal(*table, format, widest, widest);
        for (size_t token = 0; token < kTokens; ++token) {
          std::vector<float> key = random_floats(widest, static_cast<uint32_t>(2 * token));
          std::vector<float> value = random_floats(widest, static_cast<uint32_t>(2 * token + 1));
          std::fill(key.begin() + static_cast<ptrdiff_t>(of_key), key.end(), 0.0F);
          std::fill(value.begin() + static_cast<ptrdiff_t>(of_value), value.end(), 0.0F);
          page.append(token, key.data(), value.data());
          equal.append(token, key.data(), value.data());
        }
        const std::vector<float> queries = random_floats(kQueries * widest, 99);
        for (const bool in_chunks : {false, true}) {
          const auto output = page.attend(queries, kQueries, widest, kTokens, in_chunks);
          const auto expected = equal.attend(queries, kQueries, widest, kTokens, in_chunks);
          for (size_t query = 0; query < kQueries; ++query) {
            for (size_t i = 0; i < of_value; ++i) {
              ASSERT_EQ(output[query * of_value + i], expected[query * widest + i])
                  << table->name << " " << format_name(format) << " " << of_key << " " << of_value;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
