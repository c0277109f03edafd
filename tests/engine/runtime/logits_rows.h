// Helpers for tests of logits: they make tokens and compare rows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "tests/engine/runtime/loaded_model.h"

namespace lockstep {

using LogitRows = std::vector<std::vector<float>>;  // [token][vocabulary]

inline std::vector<TokenId> some_tokens(size_t count, size_t start) {
  std::vector<TokenId> tokens;
  for (size_t index = 0; index < count; ++index) {
    tokens.push_back(static_cast<TokenId>((start + index * 37) % 128));
  }
  return tokens;
}

// A file of floats, as fixtures have them.
inline std::vector<float> read_floats(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

inline TokenId likeliest(std::span<const float> logits) {
  return static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
}

inline double spread_of(std::span<const float> values) {
  double sum = 0;
  double squares = 0;
  for (const float value : values) {
    sum += value;
    squares += double{value} * value;
  }
  const auto count = static_cast<double>(values.size());
  return std::sqrt(squares / count - sum / count * (sum / count));
}

// The largest, in units of what is expected's spread. All values are finite.
inline double difference(const LogitRows& rows, std::span<const float> expected) {
  const size_t columns = rows[0].size();
  EXPECT_EQ(rows.size() * columns, expected.size());
  double worst = 0;
  for (size_t index = 0; index < expected.size(); ++index) {
    const float value = rows[index / columns][index % columns];
    EXPECT_TRUE(std::isfinite(value));
    worst = std::max(worst, std::abs(double{value} - double{expected[index]}));
  }
  return worst / spread_of(expected);
}

inline void expect_same_bits(const LogitRows& a, const LogitRows& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t row = 0; row < a.size(); ++row) {
    ASSERT_EQ(std::memcmp(a[row].data(), b[row].data(), a[row].size() * sizeof(float)), 0)
        << "row " << row;
  }
}

}  // namespace lockstep
