// Helpers for tests of logits: they make tokens and compare rows.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
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

inline void expect_same_bits(const LogitRows& a, const LogitRows& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t row = 0; row < a.size(); ++row) {
    ASSERT_EQ(std::memcmp(a[row].data(), b[row].data(), a[row].size() * sizeof(float)), 0)
        << "row " << row;
  }
}

}  // namespace lockstep
