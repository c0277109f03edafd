#include "engine/sampling/logprobs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "engine/base/check.h"
#include "engine/sampling/row_loops.h"

namespace lockstep {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Sum of exp(logit - logit_max), over blocks that stay in the first-level cache.
double sum_exponentials(std::span<const float> logits, float logit_max) {
  std::array<float, 1024> weights{};
  double sum = 0;
  while (!logits.empty()) {
    const std::span<const float> block = logits.first(std::min(logits.size(), weights.size()));
    sum += row_loops().weigh(block.data(), block.size(), logit_max, 1.0F, {}, weights.data());
    logits = logits.subspan(block.size());
  }
  return sum;
}

}  // namespace

void select_likeliest(std::span<const float> logits, size_t count,
                      std::vector<TokenLogprob>& likeliest) {
  CHECK(count > 0, "selecting the 0 likeliest tokens");
  count = std::min(count, logits.size());
  likeliest.clear();
  // Gathers what may be among them; whenever there are twice as many as wanted, drops half.
  const size_t gathered_max = std::max<size_t>(2 * count, 64);
  const auto drop = [&] {
    if (likeliest.size() < count) return;
    const auto last = likeliest.begin() + static_cast<std::ptrdiff_t>(count) - 1;
    std::nth_element(likeliest.begin(), last, likeliest.end(), is_likelier);
    likeliest.resize(count);
  };
  bool bounded = false;
  float bound = 0;
  for (size_t index = 0; index < logits.size(); ++index) {
    const float logit = std::isnan(logits[index]) ? -kInfinity : logits[index];
    // Among equal logits those that came first, with lower ids, are ahead.
    if (bounded && logit <= bound) continue;
    likeliest.push_back({static_cast<TokenId>(index), logit});
    if (likeliest.size() < gathered_max) continue;
    drop();
    bounded = true;
    bound = likeliest.back().logprob;
  }
  drop();
}

LogprobResult compute_logprobs(std::span<const float> logits, TokenId token, size_t count) {
  CHECK(token >= 0 && static_cast<size_t>(token) < logits.size(),
        "token {} of {} logits was asked for", token, logits.size());
  const float logit_max = row_loops().greatest(logits.data(), logits.size());
  const double log_sum =
      std::isfinite(logit_max)
          ? static_cast<double>(logit_max) + std::log(sum_exponentials(logits, logit_max))
          : std::numeric_limits<double>::infinity();
  const auto logprob_of = [log_sum](float logit) {
    if (!std::isfinite(logit) || !std::isfinite(log_sum)) return -kInfinity;
    return static_cast<float>(static_cast<double>(logit) - log_sum);
  };
  LogprobResult result;
  result.logprob = logprob_of(logits[static_cast<size_t>(token)]);
  if (count == 0) return result;
  select_likeliest(logits, count, result.top);
  std::sort(result.top.begin(), result.top.end(), is_likelier);
  for (TokenLogprob& entry : result.top) entry.logprob = logprob_of(entry.logprob);
  return result;
}

}  // namespace lockstep
