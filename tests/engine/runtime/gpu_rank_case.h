// Models on ranks that are GPUs: what their tests share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/test_gpus.h"
#include "tests/paths.h"

namespace lockstep {

inline const std::string kFolder = source_dir() + "/tests/fixtures/logits/";

class OnTestGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string absence = no_test_gpus(); !absence.empty()) GTEST_SKIP() << absence;
  }
};

inline LoadedModelOptions on_gpu(KvFormat format = KvFormat::kF16) {
  return {.kv_format = format, .gpus = &test_gpus()};
}

inline double worst_difference(const LogitRows& a, const LogitRows& b) {
  double worst = 0;
  for (size_t row = 0; row < a.size(); ++row) {
    for (size_t column = 0; column < a[row].size(); ++column) {
      EXPECT_TRUE(std::isfinite(a[row][column]) && std::isfinite(b[row][column]));
      worst = std::max(worst, std::abs(double{a[row][column]} - double{b[row][column]}));
    }
  }
  return worst;
}

inline double largest(const std::vector<float>& logits) {
  double most = 0;
  for (const float logit : logits) most = std::max(most, double{std::abs(logit)});
  return most;
}

inline LogitRows generate_after_prompt(LoadedModel& loaded, const std::vector<TokenId>& tokens,
                                       size_t prompted) {
  LoadedModel::Sequence sequence = loaded.new_sequence(tokens.size());
  const std::vector<LoadedModel::Piece> prompt = {{sequence, std::span(tokens).first(prompted)}};
  LogitRows rows = loaded.compute(prompt);
  for (size_t token = prompted; token < tokens.size(); ++token) {
    const std::vector<LoadedModel::Piece> one = {{sequence, std::span(tokens).subspan(token, 1)}};
    rows.push_back(loaded.compute(one, 1).front());
  }
  loaded.give_back(sequence);
  return rows;
}

}  // namespace lockstep
