// Greedy continuations of the bundled model with their log-probabilities, from the float64
// reference of tests/fixtures/make_continuations.py.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/sampling/sampler.h"
#include "tests/engine/runtime/loaded_model.h"
#include "tests/paths.h"

namespace lockstep {

struct Continuation {
  std::string prompt;
  std::vector<TokenId> prompt_ids;
  // By step the likeliest tokens with their log-probabilities; the first is the one to go on with.
  std::vector<std::vector<std::pair<TokenId, double>>> steps;
};

inline std::vector<Continuation> read_continuations() {
  std::ifstream file(source_dir() + "/tests/fixtures/demo_continuations.json");
  std::vector<Continuation> all;
  for (const auto& entry : nlohmann::json::parse(file)) {
    all.push_back({entry.at("prompt"), entry.at("prompt_ids"), entry.at("steps")});
  }
  return all;
}

struct ContinuationLimits {
  size_t steps = 48;
  double tolerance = 0;  // of a log-probability
};

// Feeds the continuation token by token. A token that leads by more than both may be off leads here
// as well.
inline void expect_continuation(LoadedModel& loaded, const Continuation& expected,
                                const ContinuationLimits& limits) {
  SCOPED_TRACE("prompt '" + expected.prompt + "'");
  const size_t steps = std::min(limits.steps, expected.steps.size());
  LoadedModel::Sequence sequence = loaded.new_sequence(expected.prompt_ids.size() + steps);
  std::vector<TokenId> next = expected.prompt_ids;
  for (size_t step = 0; step < steps; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const std::vector<LoadedModel::Piece> pieces = {{sequence, next}};
    const std::vector<float> logits = loaded.compute(pieces, step == 0 ? 0 : 1).back();
    const auto& top = expected.steps[step];
    for (const auto& [token, logprob] : top) {
      ASSERT_NEAR(compute_logprobs(logits, token, 0).logprob, logprob, limits.tolerance) << token;
    }
    if (top[0].second - top[1].second > 2 * limits.tolerance) {
      ASSERT_EQ(compute_logprobs(logits, top[0].first, 1).top.at(0).token, top[0].first);
    }
    next = {top[0].first};
  }
  loaded.give_back(sequence);
}

}  // namespace lockstep
