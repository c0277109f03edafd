#include "engine/text/weighted_draw.h"

#include <cstddef>

namespace lockstep {
namespace {

// SplitMix64's finalizer (Steele, Lea, Flood 2014): every input bit reaches every output bit.
uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27U)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31U);
}

}  // namespace

double uniform(uint64_t seed, uint64_t draw_number) {
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15U;
  const uint64_t bits = mix(mix(seed + kGoldenRatio) + kGoldenRatio * (draw_number + 1));
  return static_cast<double>(bits >> 11U) * 0x1p-53;
}

LikelihoodCut find_cut(std::vector<WeighedToken>& tokens, double wanted) {
  // Halves the range that holds the set's end until it is worth sorting.
  constexpr std::ptrdiff_t kSortedMax = 64;
  double before = 0;  // weight of the tokens before `first`
  auto first = tokens.begin();
  auto last = tokens.end();
  while (last - first > kSortedMax) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, is_before);
    double half = 0;
    for (auto token = first; token != middle; ++token) half += static_cast<double>(token->weight);
    if (before + half >= wanted) {
      last = middle;
    } else {
      before += half;
      first = middle;
    }
  }
  std::sort(first, last, is_before);
  LikelihoodCut cut;
  for (auto token = first; token != last; ++token) {
    cut = {token->logit, token->token};
    before += static_cast<double>(token->weight);
    if (before >= wanted) break;
  }
  return cut;
}

}  // namespace lockstep
