// Sampler's pick from candidates alone. What it proves: the tokens that are no candidates, the
// rest, can be neither the likeliest nor within the cuts that the parameters make, or weigh
// nothing; then every number that the whole row would give is formed of candidates, and is formed
// here in the same order. For the rest it has bounds. Adjusting a logit is monotonous: a token of
// the rest has at most what the last candidate's logit would become; and where no parameter raises
// anything, at most what it had.
#include <algorithm>
#include <limits>

#include "engine/base/check.h"
#include "engine/text/exponential.h"
#include "engine/text/sampler.h"

namespace lockstep {
namespace {

constexpr float kInfiniteScore = std::numeric_limits<float>::infinity();
constexpr LikelihoodCut kEverything = {-kInfiniteScore, std::numeric_limits<TokenId>::max()};

// How much greater than a token's the computed weight of one that is less likely may be; more than
// twice the error of exp_nonpositive().
constexpr double kWeightSlack = 1 + 1e-6;
// Beyond the rounding of any sum of a vocabulary's weights.
constexpr double kSumSlack = 1e-9;

}  // namespace

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
      candidates.draw && banned.empty() && candidates.draw->wish == draw_wish();
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

LogitDrawWish Sampler::draw_wish() const {
  const bool limited = parameters_.top_k > 0 && parameters_.top_k < vocabulary_size_;
  if (!(parameters_.temperature > 0.0F) || limited || adjusts()) return {};
  // A cut by top_p needs the sum of all weights.
  return {.inverse_temperature = inverse_temperature(parameters_.temperature),
          .weight_min = parameters_.top_p < 1.0F ? 0.0F : parameters_.min_p,
          .uniform = uniform(parameters_.seed, draws_)};
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
