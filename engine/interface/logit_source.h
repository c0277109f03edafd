// Logits without sampling: what is asked for, and who computes them.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/interface/model_info.h"
#include "engine/text/tokenizer.h"

namespace lockstep {

// The logits that tokens get, without sampling: see LogitSource::compute_logits().
struct LogitsCase {
  // Each from position 0 on, side by side; all of one length.
  std::vector<std::span<const TokenId>> sequences;
  size_t first = 0;  // logits are wanted from this position on
  // Whether the tokens from `first` on are computed as generated ones are, one per pass; otherwise
  // all of them are a prompt.
  bool generated = false;
};
// Called with the logits after the token at `position` of a sequence; must not throw.
using UseLogits =
    std::function<void(size_t sequence, size_t position, std::span<const float> logits)>;

// A model whose predictions are looked at: an engine.
class LogitSource {
 public:
  virtual ~LogitSource() = default;

  virtual const ModelInfo& model() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;

  // Computes tokens with the passes that serve requests, and hands out logits: each sequence's in
  // order of position. Only while no request is running. Fails with kInvalidInput for tokens
  // outside of the vocabulary and for what does not fit the context.
  virtual Result<void> compute_logits(const LogitsCase& wanted, const UseLogits& use) = 0;
};

}  // namespace lockstep
