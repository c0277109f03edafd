// Shared by the tests of the GGUF parser: a sample file with something of everything, and
// what must hold for every file that was accepted.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/model/gguf_file.h"
#include "tests/engine/model/gguf_writer.h"
#include "tests/temporary_folder.h"

namespace lockstep::test {

// Every type of value, every format, one to four dimensions.
inline GgufWriter sample() {
  GgufWriter writer;
  writer.add("general.architecture", std::string("llama"))
      .add("u8", uint8_t{200})
      .add("i8", int8_t{-100})
      .add("u16", uint16_t{60000})
      .add("i16", int16_t{-30000})
      .add("u32", uint32_t{4000000000})
      .add("i32", int32_t{-2000000000})
      .add("f32", 0.5f)
      .add("yes", true)
      .add("no", false)
      .add("u64", uint64_t{18000000000000000000u})
      .add("i64", int64_t{-9000000000000000000})
      .add("f64", 0.1)
      .add_array<uint8_t>("u8s", {1, 255})
      .add_array<int8_t>("i8s", {-128, 127})
      .add_array<uint16_t>("u16s", {1, 65535})
      .add_array<int16_t>("i16s", {-32768, 32767})
      .add_array<uint32_t>("u32s", {1, 4294967295})
      .add_array<int32_t>("i32s", {-2147483647, 2147483647})
      .add_array<float>("f32s", {-1.5f, 2.25f})
      .add_array<bool>("bools", {true, false, true})
      .add_array<std::string>("strings", {"", "a", std::string("b\0c", 3), "\xff\xfe"})
      .add_array<uint64_t>("u64s", {1, 18000000000000000000u})
      .add_array<int64_t>("i64s", {-9000000000000000000, 9000000000000000000})
      .add_array<double>("f64s", {0.1, -0.2})
      .add_array<std::string>("none", {});
  writer.add_tensor("vector", Format::kF32, {5});
  writer.add_tensor("four", Format::kF16, {4, 3, 2, 2});
  for (const FormatTraits& format : all_formats()) {
    writer.add_tensor("matrix." + std::string(format.name), format.format, {512, 3});
  }
  return writer;
}

// Whole numbers as a tensor of one dimension: I32 or I64, by their type.
template <typename Integer>
void add_integers(GgufWriter& writer, std::string name, const std::vector<Integer>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  writer.tensors.push_back({.name = std::move(name),
                            .ggml_type = sizeof(Integer) == 4 ? 26U : 27U,
                            .dimensions = {values.size()},
                            .data = {bytes.begin(), bytes.end()},
                            .offset = {},
                            .dimension_count = {}});
}

inline Result<GgufFile> parse(const std::vector<std::byte>& bytes) {
  return GgufFile::parse(bytes, "sample.gguf");
}

// Checks what a caller may rely on, whatever the file's bytes were.
inline void expect_consistent(const GgufFile& file, uint64_t size_bytes) {
  std::vector<std::pair<uint64_t, uint64_t>> extents;
  for (const GgufTensor& tensor : file.tensors()) {
    ASSERT_FALSE(tensor.dimensions.empty());
    ASSERT_LE(tensor.dimensions.size(), 4u);
    ASSERT_TRUE(std::ranges::find(tensor.dimensions, 0u) == tensor.dimensions.end());
    ASSERT_EQ(tensor.columns() % traits(tensor.format).block_elements, 0u);
    ASSERT_EQ(tensor.rows() * row_bytes(tensor.format, tensor.columns()), tensor.size_bytes);
    ASSERT_LE(tensor.offset, size_bytes);
    ASSERT_LE(tensor.size_bytes, size_bytes - tensor.offset);
    ASSERT_EQ(file.find_tensor(tensor.name), &tensor);
    extents.emplace_back(tensor.offset, tensor.offset + tensor.size_bytes);
  }
  for (const auto& [name, tensor] : file.integer_tensors()) {
    ASSERT_EQ(tensor.name, name);
    ASSERT_TRUE(tensor.integer_bytes == 4 || tensor.integer_bytes == 8);
    ASSERT_EQ(tensor.rows() * tensor.columns() * tensor.integer_bytes, tensor.size_bytes);
    ASSERT_LE(tensor.offset, size_bytes);
    ASSERT_LE(tensor.size_bytes, size_bytes - tensor.offset);
    ASSERT_EQ(file.find_tensor(name), nullptr);
    extents.emplace_back(tensor.offset, tensor.offset + tensor.size_bytes);
  }
  std::ranges::sort(extents);
  for (size_t index = 1; index < extents.size(); ++index) {
    ASSERT_LE(extents[index - 1].second, extents[index].first);
  }
}

}  // namespace lockstep::test
