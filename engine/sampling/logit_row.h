// One token's logits, as a pass leaves them: the whole row, or its likeliest tokens with the whole
// row to be had for the asking (from a GPU's memory). Belongs to one thread; valid until the next
// pass.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "engine/base/result.h"
#include "engine/base/token_id.h"

namespace lockstep {

// A token to be drawn from a row by weights of exp((logit - the greatest) * inverse_temperature);
// those below `weight_min` count as 0. The token is the first at which the running sum of weights
// exceeds `uniform` times their sum, as Sampler forms both.
struct LogitDrawRequest {
  float inverse_temperature = 0;  // 0: none is
  float weight_min = 0;
  double uniform = 0;  // in [0, 1)

  bool operator==(const LogitDrawRequest&) const = default;
};

struct LogitDraw {
  LogitDrawRequest request;
  double weight_sum = 0;
  TokenId token = 0;
};

// The first tokens in the order of likelihood (the greater logit first, of equal ones the lower
// token) of a vocabulary whose logits are all finite. Every other token comes after `last`,
// whatever is done to the given logits: those that a grammar forbids may have been made minus
// infinity.
struct LogitCandidates {
  std::span<const TokenId> tokens;  // in that order, each once; at least one
  std::span<const float> logits;    // of the tokens
  TokenId last_token = 0;
  float last_logit = 0;
  // Drawn from the whole row as it is, without regard to what a grammar forbids.
  std::optional<LogitDraw> draw = {};
};

// False for NaN and infinities.
bool all_finite(std::span<const float> numbers);

class LogitRow {
 public:
  using Fetch = std::function<Result<std::span<const float>>()>;

  // A row that is there.
  explicit LogitRow(std::span<const float> all) : all_(all) {}
  // `fetch` gives the whole row; at least one candidate.
  LogitRow(std::span<const TokenId> tokens, std::span<const float> logits, bool finite, Fetch fetch,
           std::optional<LogitDraw> draw = {})
      : candidates_{tokens, logits, tokens.back(), logits.back(), draw},
        finite_(finite),
        fetch_(std::move(fetch)) {}

  // False: some logit is NaN or infinite, and there are no candidates.
  bool is_finite() const;
  // Null where the row is there: nothing is to be gained by looking at a part of it.
  const LogitCandidates* candidates() const {
    return fetch_ != nullptr && finite_ ? &candidates_ : nullptr;
  }
  // Fetched where it is not there, once. Fails as Executor::run() does.
  Result<std::span<const float>> all();

 private:
  std::span<const float> all_;
  LogitCandidates candidates_;
  bool finite_ = true;  // where there is something to fetch
  Fetch fetch_;
};

}  // namespace lockstep
