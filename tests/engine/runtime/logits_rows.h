// Helpers for tests of logits: they make tokens and compare rows.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
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

inline void expect_same_bits(const LogitRows& a, const LogitRows& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t row = 0; row < a.size(); ++row) {
    ASSERT_EQ(std::memcmp(a[row].data(), b[row].data(), a[row].size() * sizeof(float)), 0)
        << "row " << row;
  }
}

}  // namespace lockstep
