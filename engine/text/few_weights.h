// The tokens of a vocabulary that weigh anything, when they are few: sums and draws have the bits
// that they have over the whole vocabulary (Sampler), since what weighs nothing changes no sum.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/text/weighted_draw.h"

namespace lockstep {

class FewWeights {
 public:
  // Empty; then filled with logits in any order, each token once.
  std::vector<WeighedToken>& tokens() { return tokens_; }
  const std::vector<WeighedToken>& tokens() const { return tokens_; }
  // Puts them into the order of the tokens, which the following need.
  void arrange();

  // Sets the weights to exp((logit - logit_max) * inverse) within the cut and where they are at
  // least `weight_min`, elsewhere to 0. Returns their sum.
  double weigh(const LikelihoodCut& cut, float logit_max, float inverse, float weight_min);
  // The token at which the running sum of weights passes `target`; some token weighs something.
  TokenId draw(double target, size_t vocabulary_size) const;

 private:
  // The sum of the tokens of a block that weigh something.
  struct BlockSum {
    size_t block = 0;  // of kDrawBlock tokens
    size_t begin = 0;  // in tokens_, with others between that weigh nothing
    size_t end = 0;
    double sum = 0;
  };

  std::vector<WeighedToken> tokens_;
  std::vector<BlockSum> blocks_;
};

}  // namespace lockstep
