#include "engine/sampling/weighted_draw.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "engine/sampling/exponential.h"

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

void FewWeights::arrange() {
  std::ranges::sort(tokens_, {}, &WeighedToken::token);
}

// Sums of a block are those of sum_in_lanes(), blocks are added in their order.
double FewWeights::weigh(const LikelihoodCut& cut, float logit_max, float inverse,
                         float weight_min) {
  blocks_.clear();
  double sum = 0;
  for (size_t begin = 0; begin < tokens_.size();) {
    const size_t block = static_cast<size_t>(tokens_[begin].token) / kDrawBlock;
    std::array<double, kSumLanes> lanes{};
    size_t end = begin;
    bool weighs = false;
    for (; end < tokens_.size(); ++end) {
      WeighedToken& token = tokens_[end];
      const auto index = static_cast<size_t>(token.token);
      if (index / kDrawBlock != block) break;
      const float weight = exp_nonpositive((token.logit - logit_max) * inverse);
      const bool held = cut.holds(token.logit, token.token) && weight >= weight_min;
      token.weight = held ? weight : 0.0F;
      lanes[index % kSumLanes] += static_cast<double>(token.weight);
      weighs = weighs || token.weight > 0.0F;
    }
    if (weighs) {
      double block_sum = 0;
      for (const double lane : lanes) block_sum += lane;
      blocks_.push_back({block, begin, end, block_sum});
      sum += block_sum;
    }
    begin = end;
  }
  return sum;
}

// Blocks without weight are passed by, but for the vocabulary's last, where a draw ends whatever
// rounding has done; there it takes the last token that weighs something.
TokenId FewWeights::draw(double target, size_t vocabulary_size) const {
  const size_t last_block = (vocabulary_size - 1) / kDrawBlock;
  double before = 0;
  size_t at = 0;
  while (at < blocks_.size() && blocks_[at].block < last_block &&
         before + blocks_[at].sum <= target) {
    before += blocks_[at++].sum;
  }
  const bool ended = at == blocks_.size();
  const BlockSum& block = ended ? blocks_.back() : blocks_[at];
  TokenId picked = 0;
  for (size_t index = block.begin; index < block.end && (ended || before <= target); ++index) {
    if (tokens_[index].weight == 0.0F) continue;
    picked = tokens_[index].token;
    before += static_cast<double>(tokens_[index].weight);
  }
  return picked;
}

}  // namespace lockstep
