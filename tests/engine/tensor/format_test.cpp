// The table of formats, against the gguf package: tests/fixtures/make_quantized_blocks.py.
#include "engine/tensor/format.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/tensor/formats.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

struct Blocks {
  std::string name;
  std::vector<std::byte> bytes;
  std::vector<float> values;
};

std::vector<Blocks> read_fixture() {
  std::ifstream file(source_dir() + "/tests/fixtures/quantized_blocks.bin", std::ios::binary);
  std::vector<Blocks> result;
  const auto number = [&file] {
    uint32_t value = 0;
    file.read(reinterpret_cast<char*>(&value), sizeof(value));
    return value;
  };
  for (uint32_t length = number(); file; length = number()) {
    Blocks blocks;
    blocks.name.resize(length);
    file.read(blocks.name.data(), length);
    blocks.values.resize(number());
    blocks.bytes.resize(number());
    file.read(reinterpret_cast<char*>(blocks.bytes.data()),
              static_cast<std::streamsize>(blocks.bytes.size()));
    file.read(reinterpret_cast<char*>(blocks.values.data()),
              static_cast<std::streamsize>(blocks.values.size() * sizeof(float)));
    EXPECT_TRUE(file) << blocks.name;
    result.push_back(std::move(blocks));
  }
  return result;
}

TEST(Format, every_format_dequantizes_to_the_bits_of_the_gguf_package) {
  const std::vector<Blocks> fixture = read_fixture();
  ASSERT_EQ(fixture.size(), kFormatCount);
  for (const Blocks& blocks : fixture) {
    SCOPED_TRACE(blocks.name);
    const auto format = format_of_name(blocks.name);
    ASSERT_TRUE(format);
    ASSERT_EQ(row_bytes(*format, blocks.values.size()), blocks.bytes.size());
    // One byte in front: blocks in a file have no alignment.
    std::vector<std::byte> shifted(blocks.bytes.size() + 1);
    std::memcpy(shifted.data() + 1, blocks.bytes.data(), blocks.bytes.size());
    std::vector<float> values(blocks.values.size());
    traits(*format).dequantize(shifted.data() + 1, values.size(), values.data());
    for (size_t index = 0; index < values.size(); ++index) {
      if (std::isnan(blocks.values[index])) {
        ASSERT_TRUE(std::isnan(values[index])) << "element " << index;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(values[index]),
                  std::bit_cast<uint32_t>(blocks.values[index]))
            << "element " << index << ": " << values[index] << ", not " << blocks.values[index];
      }
    }
  }
}

TEST(Format, the_table_is_in_the_order_of_the_enumeration) {
  ASSERT_EQ(all_formats().size(), kFormatCount);
  for (size_t index = 0; index < kFormatCount; ++index) {
    const FormatTraits& row = all_formats()[index];
    EXPECT_EQ(static_cast<size_t>(row.format), index);
    EXPECT_EQ(&traits(row.format), &row);
  }
}

TEST(Format, readme_names_every_format) {
  std::ifstream file(source_dir() + "/README.md");
  const std::string readme{std::istreambuf_iterator<char>(file), {}};
  const size_t begin = readme.find("## What it reads");
  ASSERT_NE(begin, std::string::npos);
  const std::string list = readme.substr(begin, readme.find("tokenizers", begin) - begin);
  for (const FormatTraits& row : all_formats()) {
    EXPECT_NE(list.find(std::string(row.name)), std::string::npos) << row.name;
  }
}

// | format | bits in the file | bits in memory | product of int8 |
TEST(Format, the_page_tells_the_bits_of_formats_of_codes) {
  std::ifstream file(source_dir() + "/engine/docs/formats.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const auto rows = each_format<std::string>([]<typename F>() {
    if constexpr (CodedFormat<F>) {
      const FormatTraits& format = F::kTraits;
      const auto bits = [](double bytes, double elements) { return 8 * bytes / elements; };
      return fmt::format("| {} | {:.2f} | {:.2f} | {} |", format.name,
                         bits(format.block_bytes, format.block_elements),
                         bits(format.packed.bytes, format.packed.elements),
                         F::kCodes.is_common ? "own" : "general");
    }
    return std::string();
  });
  for (const std::string& row : rows) {
    EXPECT_NE(page.find(row), std::string::npos) << row;
  }
}

TEST(Format, memory_has_the_values_of_the_file) {
  for (const Blocks& blocks : read_fixture()) {
    SCOPED_TRACE(blocks.name);
    const FormatTraits& format = traits(*format_of_name(blocks.name));
    const size_t count = blocks.values.size();
    std::vector<std::byte> packed = blocks.bytes;
    if (format.packed.encode != nullptr) {
      packed.resize(packed_row_bytes(format.format, count));
      format.packed.encode(blocks.bytes.data(), count, packed.data());
    }
    std::vector<float> values(count);
    format.packed.dequantize(packed.data(), count, values.data());
    for (size_t index = 0; index < count; ++index) {
      if (std::isnan(blocks.values[index])) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(values[index]),
                std::bit_cast<uint32_t>(blocks.values[index]))
          << "element " << index;
    }
  }
}

TEST(Format, every_row_is_found_by_its_name_and_its_ggml_type) {
  for (const FormatTraits& row : all_formats()) {
    EXPECT_EQ(format_of_name(row.name), row.format);
    EXPECT_EQ(format_of_ggml_type(row.ggml_type), row.format);
  }
}

TEST(Format, unknown_names_and_types_give_nothing) {
  EXPECT_EQ(format_of_name("Q4_2"), std::nullopt);
  EXPECT_EQ(format_of_name(""), std::nullopt);
  EXPECT_EQ(format_of_name("q4_0"), std::nullopt);
  for (const uint32_t type : {4u, 5u, 9u, 15u, 24u, 31u, 36u, 41u, 255u, 0x80000000u, ~0u}) {
    EXPECT_EQ(format_of_ggml_type(type), std::nullopt) << type;
  }
}

TEST(Format, a_row_of_no_elements_has_no_bytes) {
  for (const FormatTraits& row : all_formats()) {
    EXPECT_EQ(row_bytes(row.format, 0), 0u);
    row.dequantize(nullptr, 0, nullptr);
  }
}

}  // namespace
}  // namespace lockstep
