#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "engine/kernels/kernel_table.h"
#include "engine/tensor/format.h"
#include "tests/engine/kernels/paged_sequence.h"

namespace lockstep {
namespace {

// One page's blocks of one KV head.
struct Page {
  Page(KvFormat format, size_t head_dimension, uint8_t filler)
      : keys(key_block_bytes(format, head_dimension), std::byte{filler}),
        values(value_block_bytes(format, head_dimension), std::byte{filler}) {}

  std::vector<std::byte> keys;
  std::vector<std::byte> values;
};

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
    if (!machine_supports(*table)) continue;
    for (const KvFormat format : kAllKvFormats) {
      for (const size_t head_dimension : Sizes{1, 8, 48, 64, 100}) {
        for (const size_t slot : Sizes{0, 1, 31, 63}) {
          const auto seed = static_cast<uint32_t>(slot);
          const std::vector<float> key = hard_floats(head_dimension, seed);
          const std::vector<float> value = hard_floats(head_dimension, seed + 1);
          Page page(format, head_dimension, 0xA5);
          table->append_kv(format, head_dimension, slot, key.data(), value.data(), page.keys.data(),
                           page.values.data());
          expect_stored(format, head_dimension, slot, key, value, page, 0xA5,
                        std::string(table->name) + " " + format_name(format));
        }
      }
    }
  }
}

// A page that append_kv has filled, read by attend, is the one the reference sequence has.
TEST(AppendKv, stores_what_attend_reads) {
  constexpr size_t kHeadDimension = 72;
  for (const KernelTable* table : all_kernel_tables()) {
    if (!machine_supports(*table)) continue;
    for (const KvFormat format : kAllKvFormats) {
      const PagedSequence sequence(format, kHeadDimension, 40, 1);
      const std::vector<float> query = random_floats(kHeadDimension, 2);
      std::vector<float> expected(kHeadDimension);
      AttentionArguments arguments = sequence.arguments(query.data(), 1, expected.data());
      table->attend(arguments);

      Page page(format, kHeadDimension, 0xFF);
      for (size_t token = 0; token < sequence.context(); ++token) {
        // From an odd address: rows of keys may lie anywhere.
        std::vector<float> key(kHeadDimension + 1);
        std::vector<float> value(kHeadDimension + 1);
        for (size_t i = 0; i < kHeadDimension; ++i) {
          key[i + 1] = static_cast<float>(sequence.key(token, i));
          value[i + 1] = static_cast<float>(sequence.value(token, i));
        }
        table->append_kv(format, kHeadDimension, token, key.data() + 1, value.data() + 1,
                         page.keys.data(), page.values.data());
      }
      std::vector<float> output(kHeadDimension);
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

}  // namespace
}  // namespace lockstep
