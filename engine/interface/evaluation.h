// How well a model predicts a text, and how far its predictions are from those of the model that it
// was made of: what `lockstepd evaluate` prints.
//
// The text's tokens are cut into chunks, each computed by itself; what is left at the end is not
// used. Where the vocabulary begins its texts with a token, each chunk's first token is replaced by
// it. Of a chunk of n tokens the predictions after tokens n / 2 to n - 2 are scored, those that
// have half a chunk before them at least. llama-perplexity chooses alike, so that figures compare.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace lockstep {

struct EvaluationOptions {
  uint32_t context_tokens = 512;  // of a chunk; at least 4
  uint32_t chunk_count = 0;       // at most so many are used; 0: all
  // Whether the scored tokens are computed as generated ones are, one per pass, in so many chunks
  // side by side. A chunk's logits of the reference, context_tokens / 2 rows of the vocabulary, are
  // held in memory for each of them.
  bool generated = false;
  uint32_t side_by_side = 1;
  // After some chunks are done; none: nobody is told.
  std::function<void(uint32_t done, uint32_t all)> on_chunks = {};
};

// A mean over the scored tokens and its standard error, as if they were independent.
struct Estimate {
  double mean = 0;
  double error = 0;
};

struct Evaluation {
  // With a reference; logarithms are natural.
  struct Comparison {
    Estimate perplexity;  // of the reference
    Estimate log_ratio;   // ln(perplexity / the reference's), token by token
    // The Kullback-Leibler divergence of the model's distribution from the reference's: the mean,
    // under the reference, of ln(p of the reference / p of the model).
    Estimate divergence;
    double divergence_median = 0;
    double divergence_90 = 0;  // percentiles
    double divergence_99 = 0;
    double divergence_max = 0;
    Estimate top_agreement;  // how often both find the same token the most likely
  };

  uint64_t text_tokens = 0;
  uint32_t chunk_count = 0;
  uint64_t scored_tokens = 0;
  Estimate log_loss;    // -ln p of the token that comes
  Estimate perplexity;  // exp of that; the error is the first-order one
  std::optional<Comparison> comparison;
};

}  // namespace lockstep
