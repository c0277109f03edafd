#include "engine/text/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "engine/base/check.h"
#include "engine/text/exponential.h"

namespace lockstep {

namespace {

constexpr float kInfiniteLogit = std::numeric_limits<float>::infinity();
constexpr TokenId kNoToken = -1;
// Far beyond any use: within it, sums of a finite logit and a few parameters overflow, if at all,
// to an infinity, and never to a NaN.
constexpr float kModerate = 1e6F;

bool all_usable(std::span<const float> logits) {
  uint32_t unusable = 0;
  for (const float logit : logits) {
    unusable |= logit <= std::numeric_limits<float>::max() ? 0U : 1U;  // 1 for NaN, too
  }
  return unusable == 0;
}

}  // namespace

Sampler::Sampler(SamplingParameters parameters, std::span<const TokenId> prompt,
                 size_t vocabulary_size)
    : parameters_(std::move(parameters)), vocabulary_size_(vocabulary_size) {
  const auto in_vocabulary = [this](TokenId token) {
    return token >= 0 && static_cast<size_t>(token) < vocabulary_size_;
  };
  std::erase_if(parameters_.logit_bias,
                [&](const auto& bias) { return !in_vocabulary(bias.first); });
  // Several of one token stay in the order in which they are added.
  const std::multimap<TokenId, float> by_token(parameters_.logit_bias.begin(),
                                               parameters_.logit_bias.end());
  parameters_.logit_bias.assign(by_token.begin(), by_token.end());
  const auto is_moderate = [](float value) { return std::abs(value) <= kModerate; };
  moderate_ = is_moderate(parameters_.presence_penalty) &&
              is_moderate(parameters_.frequency_penalty) &&
              parameters_.repetition_penalty <= kModerate &&
              parameters_.repetition_penalty >= 1 / kModerate;
  for (const auto& [token, bias] : parameters_.logit_bias) {
    moderate_ = moderate_ && is_moderate(bias);
  }
  raises_ = parameters_.repetition_penalty < 1.0F || parameters_.presence_penalty < 0.0F ||
            parameters_.frequency_penalty < 0.0F;
  penalizes_ = raises_ || parameters_.repetition_penalty > 1.0F ||
               parameters_.presence_penalty > 0.0F || parameters_.frequency_penalty > 0.0F;
  if (parameters_.repetition_penalty == 1.0F) return;
  for (const TokenId token : prompt) {
    if (in_vocabulary(token)) counts_.try_emplace(token, 0);
  }
}

TokenId Sampler::sample(std::span<const float> logits, std::span<const TokenId> banned) {
  CHECK(logits.size() == vocabulary_size_, "{} logits for a vocabulary of {}", logits.size(),
        vocabulary_size_);
  const uint64_t draw_number = draws_++;
  adjust(logits);
  if (!all_usable(adjusted_)) return kNoToken;
  ban(banned);
  const float logit_max = max_in_lanes(adjusted_);
  if (logit_max == -kInfiniteLogit) return kNoToken;

  TokenId picked = kNoToken;
  if (parameters_.temperature > 0.0F) {
    LikelihoodCut cut = cut_to_top_k();
    if (parameters_.top_p < 1.0F) cut = cut_to_top_p(cut, logit_max);
    const double sum = weigh(cut, logit_max, parameters_.min_p);
    picked = draw(uniform(parameters_.seed, draw_number) * sum);
  } else {
    const auto first = std::find(adjusted_.begin(), adjusted_.end(), logit_max);
    picked = static_cast<TokenId>(first - adjusted_.begin());
  }
  ++counts_[picked];
  return picked;
}

void Sampler::adjust(std::span<const float> logits) {
  adjusted_.assign(logits.begin(), logits.end());
  for (const auto& [token, bias] : parameters_.logit_bias) {
    adjusted_[static_cast<size_t>(token)] += bias;
  }
  for (const auto& [token, count] : counts_) {
    float& logit = adjusted_[static_cast<size_t>(token)];
    logit = penalized(logit, count);
  }
}

float Sampler::penalized(float logit, uint32_t count) const {
  const float repetition = parameters_.repetition_penalty;
  if (repetition != 1.0F) logit = logit > 0.0F ? logit / repetition : logit * repetition;
  if (count > 0) {
    logit -= parameters_.presence_penalty;
    logit -= static_cast<float>(count) * parameters_.frequency_penalty;
  }
  return logit;
}

void Sampler::ban(std::span<const TokenId> banned) {
  for (const TokenId token : banned) {
    if (token >= 0 && static_cast<size_t>(token) < vocabulary_size_) {
      adjusted_[static_cast<size_t>(token)] = -kInfiniteLogit;
    }
  }
}

LikelihoodCut Sampler::cut_to_top_k() {
  const size_t count = parameters_.top_k;
  if (count == 0 || count >= vocabulary_size_) {
    return {-kInfiniteLogit, std::numeric_limits<TokenId>::max()};
  }
  select_likeliest(adjusted_, count, candidates_);
  return {candidates_.back().logprob, candidates_.back().token};
}

// The smallest set of likeliest tokens that holds at least top_p of the weight within `cut`.
LikelihoodCut Sampler::cut_to_top_p(LikelihoodCut cut, float logit_max) {
  const double sum = weigh(cut, logit_max, 0.0F);
  const double wanted = static_cast<double>(parameters_.top_p) * sum;
  // Tokens this light weigh less than half of 1 - top_p together: the set is complete before them.
  const double negligible = (sum - wanted) / static_cast<double>(2 * vocabulary_size_);
  weighed_.clear();
  for (size_t index = 0; index < vocabulary_size_; ++index) {
    if (static_cast<double>(weights_[index]) > negligible) {
      weighed_.push_back({static_cast<TokenId>(index), adjusted_[index], weights_[index]});
    }
  }
  return weighed_.empty() ? cut : find_cut(weighed_, wanted);
}

double Sampler::weigh(LikelihoodCut cut, float logit_max, float weight_min) {
  weights_.resize(vocabulary_size_);
  block_sums_.clear();
  const float inverse = inverse_temperature(parameters_.temperature);
  double sum = 0;
  for (size_t begin = 0; begin < vocabulary_size_; begin += kDrawBlock) {
    const size_t size = std::min(kDrawBlock, vocabulary_size_ - begin);
    const float* logits = adjusted_.data() + begin;
    float* weights = weights_.data() + begin;
    // The last of this block's tokens that are within the cut when they have its logit.
    const auto last_equal = static_cast<int32_t>(
        std::clamp<int64_t>(static_cast<int64_t>(cut.token) - static_cast<int64_t>(begin), -1,
                            static_cast<int64_t>(kDrawBlock)));
    for (int32_t index = 0; index < static_cast<int32_t>(size); ++index) {
      const float logit = logits[index];
      const float weight = exp_nonpositive((logit - logit_max) * inverse);
      const bool within = (logit > cut.logit) | ((logit == cut.logit) & (index <= last_equal));
      weights[index] = (within & (weight >= weight_min)) ? weight : 0.0F;
    }
    block_sums_.push_back(sum_in_lanes({weights, size}));
    sum += block_sums_.back();
  }
  return sum;
}

// The first token at which the running sum of weights exceeds `target`.
TokenId Sampler::draw(double target) const {
  size_t block = 0;
  double before = 0;
  while (block + 1 < block_sums_.size() && before + block_sums_[block] <= target) {
    before += block_sums_[block++];
  }
  // Rounding may put the target a little behind the block's end: then its last token is drawn, or
  // that of the block before.
  TokenId picked = kNoToken;
  const size_t end = std::min((block + 1) * kDrawBlock, vocabulary_size_);
  for (size_t index = block * kDrawBlock; index < end && before <= target; ++index) {
    if (weights_[index] == 0.0F) continue;
    picked = static_cast<TokenId>(index);
    before += static_cast<double>(weights_[index]);
  }
  for (size_t index = block * kDrawBlock; picked == kNoToken && index-- > 0;) {
    if (weights_[index] > 0.0F) picked = static_cast<TokenId>(index);
  }
  return picked;
}

}  // namespace lockstep
