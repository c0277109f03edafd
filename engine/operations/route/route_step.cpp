#include "engine/operations/route/route_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include "engine/base/range.h"
#include "engine/operations/matmul/product_rows.h"
#include "engine/operations/step_text.h"
#include "engine/pass/pass.h"

namespace lockstep {
namespace {

constexpr std::string_view kGatingNames[] = {"softmax of the chosen", "softmax", "sigmoid",
                                             "square root of softplus"};

// The places of the largest of the values, the largest first, of equal ones the first one.
template <typename Value>
void find_largest(const Value* values, size_t value_count, uint32_t* found, size_t most) {
  size_t count = 0;  // of those found so far
  for (uint32_t candidate = 0; candidate < value_count; ++candidate) {
    const auto is_above = [&](size_t place) { return values[candidate] > values[found[place]]; };
    if (count < most) {
      ++count;
    } else if (!is_above(count - 1)) {
      continue;
    }
    size_t place = count - 1;
    for (; place > 0 && is_above(place - 1); --place) found[place] = found[place - 1];
    found[place] = candidate;
  }
}

// The values that a token's experts have by its scores: in f64, whose rounding to f32 hides how the
// library's functions round.
class ExpertValues {
 public:
  ExpertValues(GatingFunction function, const float* scores, size_t expert_count)
      : function_(function), scores_(scores) {
    if (function != GatingFunction::kSoftmax) return;
    most_ = *std::max_element(scores, scores + expert_count);
    for (size_t expert = 0; expert < expert_count; ++expert) sum_ += power_of(expert);
  }

  double of(size_t expert) const {
    const double score = scores_[expert];
    switch (function_) {
      case GatingFunction::kChosenSoftmax:
        return score;
      case GatingFunction::kSoftmax:
        return power_of(expert) / sum_;
      case GatingFunction::kSigmoid:
        return 1 / (1 + std::exp(-score));
      case GatingFunction::kSqrtSoftplus:
        return std::sqrt(std::max(score, 0.0) + std::log1p(std::exp(-std::abs(score))));
    }
    return score;
  }

 private:
  double power_of(size_t expert) const { return std::exp(double{scores_[expert]} - most_); }

  GatingFunction function_;
  const float* scores_;
  double most_ = 0;  // kSoftmax: the largest score ...
  double sum_ = 0;   // ... and the sum of the powers, in the order of the experts
};

// Takes the experts of all groups but the best out of the choice.
void close_groups(const Gating& gating, size_t expert_count, double* values) {
  const size_t size = expert_count / gating.group_count;
  double sums[kMostExperts];
  uint32_t best[kMostExperts];
  for (size_t group = 0; group < gating.group_count; ++group) {
    const double* const own = values + group * size;
    uint32_t largest[2];
    const size_t summed = std::min(size, gating.group_values);
    find_largest(own, size, largest, summed);
    sums[group] = own[largest[0]] + (summed > 1 ? own[largest[1]] : 0);
  }
  find_largest(sums, gating.group_count, best, gating.chosen_groups);
  std::sort(best, best + gating.chosen_groups);
  const uint32_t* next = best;
  for (uint32_t group = 0; group < gating.group_count; ++group) {
    if (next != best + gating.chosen_groups && *next == group) {
      ++next;
    } else {
      std::fill_n(values + group * size, size, -std::numeric_limits<double>::infinity());
    }
  }
}

// Every function grows with the score: where nothing else counts, the scores choose.
void choose_experts(const RouteStep& step, const ExpertValues& values, const float* scores,
                    uint32_t* chosen, const Pass& pass) {
  const size_t experts = step.routing.expert_count;
  if (!step.bias && step.gating.group_count == 1) {
    return find_largest(scores, experts, chosen, step.routing.chosen_count);
  }
  const float* const bias = pass.at(step.bias);
  double by_choice[kMostExperts];
  for (size_t expert = 0; expert < experts; ++expert) {
    by_choice[expert] = values.of(expert) + (bias == nullptr ? 0.0 : double{bias[expert]});
  }
  if (step.gating.group_count > 1) close_groups(step.gating, experts, by_choice);
  find_largest(by_choice, experts, chosen, step.routing.chosen_count);
}

// Sums are formed in the order of the choice.
void weigh_experts(const Gating& gating, const ExpertValues& values, const float* scores,
                   std::span<const uint32_t> chosen, float* weights) {
  const bool is_softmax = gating.function == GatingFunction::kChosenSoftmax;
  double most = scores[chosen[0]];
  for (const uint32_t expert : chosen) most = std::max(most, double{scores[expert]});
  const auto value_of = [&](uint32_t expert) {
    return is_softmax ? std::exp(double{scores[expert]} - most) : values.of(expert);
  };
  double divisor = 1;
  if (is_softmax || gating.is_normalized) {
    divisor = 0;
    for (const uint32_t expert : chosen) divisor += value_of(expert);
    if (!is_softmax) divisor = std::max(divisor, kLeastWeightSum);
  }
  for (size_t place = 0; place < chosen.size(); ++place) {
    weights[place] = static_cast<float>(value_of(chosen[place]) / divisor * gating.scale);
  }
}

void route_token(const RouteStep& step, size_t token, const Pass& pass) {
  const Routing& routing = step.routing;
  const float* const scores = pass.at(step.scores) + token * step.score_stride;
  uint32_t* const chosen = pass.at(routing.chosen) + token * routing.chosen_count;
  float* const weights = pass.at(routing.weights) + token * routing.chosen_count;
  const ExpertValues values(step.gating.function, scores, routing.expert_count);
  choose_experts(step, values, scores, chosen, pass);
  weigh_experts(step.gating, values, scores, {chosen, routing.chosen_count}, weights);
}

// Counts, adds up, and then puts each row behind its expert's last one.
void order_rows(const Routing& routing, const Pass& pass) {
  const uint32_t* const chosen = pass.at(routing.chosen);
  const float* const weights = pass.at(routing.weights);
  uint32_t* const begins = pass.at(routing.row_begin);
  uint32_t* const row_tokens = pass.at(routing.row_tokens);
  float* const ordered = pass.at(pass.areas().row_weights);
  // Until the end the places of the experts' next rows.
  uint32_t* const ends = pass.at(pass.areas().generated_end);
  std::fill_n(ends, routing.expert_count, 0U);
  const size_t choices = pass.batch.tokens.size() * routing.chosen_count;
  for (size_t choice = 0; choice < choices; ++choice) ++ends[chosen[choice]];
  uint32_t begin = 0;
  for (size_t expert = 0; expert < routing.expert_count; ++expert) {
    begins[expert] = begin;
    begin += std::exchange(ends[expert], begin);
  }
  begins[routing.expert_count] = begin;
  for (size_t choice = 0; choice < choices; ++choice) {
    const uint32_t row = ends[chosen[choice]]++;
    row_tokens[row] = static_cast<uint32_t>(choice / routing.chosen_count);
    ordered[row] = weights[choice];
  }
  for (size_t expert = 0; expert < routing.expert_count; ++expert) {
    const uint32_t* const first = row_tokens + begins[expert];
    const uint32_t* const last = row_tokens + begins[expert + 1];
    const uint32_t* const prompted = std::lower_bound(first, last, pass.batch.generated_tokens);
    ends[expert] = static_cast<uint32_t>(prompted - row_tokens);
  }
}

// The softmax of the chosen goes without saying.
std::string text_of(const Gating& gating) {
  return gating == Gating()
             ? ""
             : fmt::format(" by {}{} times {}{}, {} of {} groups by {}",
                           name_in(kGatingNames, gating.function),
                           gating.is_normalized ? " normalized" : "", gating.scale,
                           gating.weighs_inputs ? " of inputs" : "", gating.chosen_groups,
                           gating.group_count, gating.group_values);
}

}  // namespace

std::string text_of(const RouteStep& step) {
  return fmt::format("route scores {}{}{}{}", text_of(step.scores, step.score_stride),
                     text_of(step.routing), text_of(step.gating),
                     step.bias ? " bias " + text_of(step.bias) : "");
}

void run(const RouteStep& step, const Pass& pass, TaskCounter&) {
  if (!step.scores) return;
  const size_t tokens = pass.batch.tokens.size();
  // One worker is done with few tokens before others could have helped it.
  const bool alone = tokens <= kStaticRows;
  const Range mine = alone ? Range{0, pass.worker == 0 ? tokens : 0}
                           : share(Range{0, tokens}, pass.worker, pass.worker_count);
  for (size_t token = mine.begin; token < mine.end; ++token) route_token(step, token, pass);
  if (!alone) meet_rank(pass);
  if (pass.worker == 0) order_rows(step.routing, pass);
}

}  // namespace lockstep
