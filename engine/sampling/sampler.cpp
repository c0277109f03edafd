#include "engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "engine/base/check.h"
#include "engine/sampling/exponential.h"
#include "engine/sampling/row_loops.h"

namespace lockstep {
namespace {

constexpr float kInfiniteLogit = std::numeric_limits<float>::infinity();
constexpr TokenId kNoToken = -1;
// Far beyond any use: within it, sums of a finite logit and a few parameters overflow, if at all,
// to an infinity, and never to a NaN.
constexpr float kModerate = 1e6F;

constexpr float kInfiniteScore = std::numeric_limits<float>::infinity();
constexpr LikelihoodCut kEverything = {-kInfiniteScore, std::numeric_limits<TokenId>::max()};

// How much greater than a token's the computed weight of one that is less likely may be; more than
// twice the error of exp_nonpositive().
constexpr double kWeightSlack = 1 + 1e-6;
// Beyond the rounding of any sum of a vocabulary's weights.
constexpr double kSumSlack = 1e-9;

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
  const RowLoops& loops = row_loops();
  if (!loops.all_usable(adjusted_.data(), adjusted_.size())) return kNoToken;
  ban(banned);
  const float logit_max = loops.greatest(adjusted_.data(), adjusted_.size());
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
    // The last of this block's tokens that are within the cut when they have its logit.
    const auto last_equal = static_cast<int32_t>(
        std::clamp<int64_t>(static_cast<int64_t>(cut.token) - static_cast<int64_t>(begin), -1,
                            static_cast<int64_t>(kDrawBlock)));
    const BlockCut block = {.logit = cut.logit, .last_equal = last_equal, .weight_min = weight_min};
    block_sums_.push_back(row_loops().weigh(adjusted_.data() + begin, size, logit_max, inverse,
                                            block, weights_.data() + begin));
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

// The pick from candidates alone. What it proves: the tokens that are no candidates, the
// rest, can be neither the likeliest nor within the cuts that the parameters make, or weigh
// nothing; then every number that the whole row would give is formed of candidates, and is formed
// here in the same order. For the rest it has bounds. Adjusting a logit is monotonous: a token of
// the rest has at most what the last candidate's logit would become; and where no parameter raises
// anything, at most what it had.
std::optional<TokenId> Sampler::sample(const LogitCandidates& candidates,
                                       std::span<const TokenId> banned) {
  CHECK(!candidates.tokens.empty() && candidates.tokens.size() == candidates.logits.size(),
        "{} candidates with {} logits", candidates.tokens.size(), candidates.logits.size());
  if (!moderate_ || !adjust(candidates, banned)) return std::nullopt;
  const std::vector<WeighedToken>& tokens = few_.tokens();
  const auto best = std::ranges::min_element(tokens, is_before);
  const Rest rest = find_rest(candidates);
  if (best == tokens.end() || !rest.is_behind(*best)) return std::nullopt;
  // A draw from the whole row is good for it as it is.
  const bool may_use_draw =
      candidates.draw && banned.empty() && candidates.draw->request == draw_request();
  const std::optional<TokenId> picked =
      parameters_.temperature > 0.0F
          ? draw_candidate(rest, best->logit, may_use_draw ? &*candidates.draw : nullptr)
          : best->token;
  if (!picked) return std::nullopt;
  ++draws_;
  ++counts_[*picked];
  return picked;
}

float Sampler::adjusted(TokenId token, float logit) const {
  const auto biases = std::ranges::equal_range(parameters_.logit_bias, token, {},
                                               &std::pair<TokenId, float>::first);
  for (const auto& [biased, bias] : biases) logit += bias;
  if (!penalizes_) return logit;
  const auto counted = counts_.find(token);
  return counted == counts_.end() ? logit : penalized(logit, counted->second);
}

// Leaves what can be picked in few_; false where the whole row is to tell that it is unusable.
bool Sampler::adjust(const LogitCandidates& candidates, std::span<const TokenId> banned) {
  std::vector<WeighedToken>& tokens = few_.tokens();
  tokens.clear();
  for (size_t index = 0; index < candidates.tokens.size(); ++index) {
    const TokenId token = candidates.tokens[index];
    const float logit = adjusted(token, candidates.logits[index]);
    if (!(logit <= std::numeric_limits<float>::max())) return false;
    if (logit == -kInfiniteScore || std::ranges::find(banned, token) != banned.end()) continue;
    tokens.push_back({token, logit});
  }
  return true;
}

Sampler::Rest Sampler::find_rest(const LogitCandidates& candidates) {
  Rest rest = {.is_empty = candidates.tokens.size() == vocabulary_size_,
               .last = {candidates.last_logit, candidates.last_token},
               .raised = -kInfiniteScore};
  if (rest.is_empty || (parameters_.logit_bias.empty() && !raises_)) return rest;
  known_.assign(candidates.tokens.begin(), candidates.tokens.end());
  std::ranges::sort(known_);
  const auto look_at = [&](TokenId token) {
    if (std::ranges::binary_search(known_, token)) return;
    rest.raised = std::max(rest.raised, adjusted(token, rest.last.logit));
  };
  for (const auto& bias : parameters_.logit_bias) look_at(bias.first);
  if (!raises_) return rest;
  for (const auto& counted : counts_) look_at(counted.first);
  return rest;
}

// Some token's logit is not as the model gives it.
bool Sampler::adjusts() const {
  return !parameters_.logit_bias.empty() || (penalizes_ && !counts_.empty());
}

LogitDrawRequest Sampler::draw_request(size_t ahead) const {
  const bool limited = parameters_.top_k > 0 && parameters_.top_k < vocabulary_size_;
  if (!(parameters_.temperature > 0.0F) || limited || adjusts()) return {};
  // A cut by top_p needs the sum of all weights.
  return {.inverse_temperature = inverse_temperature(parameters_.temperature),
          .weight_min = parameters_.top_p < 1.0F ? 0.0F : parameters_.min_p,
          .uniform = uniform(parameters_.seed, draws_ + ahead)};
}

bool Sampler::picks_plainly() const {
  if (!parameters_.logit_bias.empty() || penalizes_) return false;
  if (!(parameters_.temperature > 0.0F)) return true;
  return draw_request().inverse_temperature != 0.0F && !(parameters_.top_p < 1.0F);
}

std::optional<TokenId> Sampler::draw_candidate(const Rest& rest, float logit_max,
                                               const LogitDraw* drawn) {
  std::vector<WeighedToken>& tokens = few_.tokens();
  const float inverse = inverse_temperature(parameters_.temperature);
  double rest_weight_max = 0;  // of all of them
  if (const size_t top_k = parameters_.top_k; top_k > 0 && top_k < vocabulary_size_) {
    if (tokens.size() < top_k && !rest.is_empty) return std::nullopt;
    if (tokens.size() >= top_k) {
      const auto last = tokens.begin() + static_cast<std::ptrdiff_t>(top_k) - 1;
      std::nth_element(tokens.begin(), last, tokens.end(), is_before);
      if (!rest.is_behind(*last)) return std::nullopt;
      tokens.resize(top_k);
    }
  } else if (!rest.is_empty) {
    if (drawn != nullptr && !(parameters_.top_p < 1.0F)) return drawn->token;
    // Nothing where this weight is 0: then it is below where exponentials become 0.
    const float most = std::max(rest.last.logit, rest.raised);
    const double weight_max =
        kWeightSlack * static_cast<double>(exp_nonpositive((most - logit_max) * inverse));
    const bool sums_all = parameters_.top_p < 1.0F;
    if (sums_all || weight_max >= static_cast<double>(parameters_.min_p)) {
      rest_weight_max = weight_max * static_cast<double>(vocabulary_size_);
    }
    if (rest_weight_max > 0 && !sums_all) return std::nullopt;
  }
  few_.arrange();
  LikelihoodCut cut = kEverything;
  if (parameters_.top_p < 1.0F) {
    const auto found = cut_candidates(rest, logit_max, rest_weight_max, drawn);
    if (!found) return std::nullopt;
    cut = *found;
  }
  const double sum = few_.weigh(cut, logit_max, inverse, parameters_.min_p);
  if (!(sum > 0)) return std::nullopt;
  return few_.draw(uniform(parameters_.seed, draws_) * sum, vocabulary_size_);
}

// The cut that top_p makes. If the rest weighs something, its sum lies between two bounds, and so
// does the weight that is wanted: the cut is sure where both have it. A draw knows the sum.
std::optional<LikelihoodCut> Sampler::cut_candidates(const Rest& rest, float logit_max,
                                                     double rest_weight_max,
                                                     const LogitDraw* drawn) {
  const float inverse = inverse_temperature(parameters_.temperature);
  const double sum = few_.weigh(kEverything, logit_max, inverse, 0.0F);
  const auto top_p = static_cast<double>(parameters_.top_p);
  if (rest_weight_max == 0) {
    // As Sampler::cut_to_top_p() has it.
    const double wanted = top_p * sum;
    const double negligible = (sum - wanted) / static_cast<double>(2 * vocabulary_size_);
    weighed_.clear();
    for (const WeighedToken& token : few_.tokens()) {
      if (static_cast<double>(token.weight) > negligible) weighed_.push_back(token);
    }
    return weighed_.empty() ? kEverything : find_cut(weighed_, wanted);
  }
  weighed_ = few_.tokens();
  std::ranges::sort(weighed_, is_before);
  const double sum_min = drawn != nullptr ? drawn->weight_sum : sum;
  const double sum_max = drawn != nullptr ? drawn->weight_sum : sum + rest_weight_max;
  const double wanted_min = top_p * sum_min * (1 - kSumSlack);
  const double wanted_max = top_p * sum_max * (1 + kSumSlack);
  double before = 0;
  for (const WeighedToken& token : weighed_) {
    before += static_cast<double>(token.weight);
    if (before < wanted_min) continue;
    if (before < wanted_max || !rest.is_behind(token)) return std::nullopt;
    return LikelihoodCut{token.logit, token.token};
  }
  return std::nullopt;
}

}  // namespace lockstep
