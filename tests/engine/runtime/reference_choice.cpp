#include "tests/engine/runtime/reference_choice.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <span>

namespace lockstep {
namespace {

std::vector<double> softmax(const std::vector<double>& scores) {
  const double greatest = std::ranges::max(scores);
  std::vector<double> values;
  for (const double score : scores) values.push_back(std::exp(score - greatest));
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  for (double& value : values) value /= sum;
  return values;
}

std::vector<double> values_of(GatingFunction function, const std::vector<double>& scores) {
  std::vector<double> values = scores;
  for (double& value : values) {
    if (function == GatingFunction::kSigmoid) value = 1 / (1 + std::exp(-value));
    if (function == GatingFunction::kSqrtSoftplus) value = std::sqrt(std::log1p(std::exp(value)));
  }
  return function == GatingFunction::kSoftmax ? softmax(scores) : values;
}

// The places of the largest, of equal ones the first.
std::vector<size_t> largest(std::span<const double> values, size_t count) {
  std::vector<size_t> places(values.size());
  std::iota(places.begin(), places.end(), size_t{0});
  std::ranges::stable_sort(places, std::greater{}, [&](size_t place) { return values[place]; });
  places.resize(std::min(count, places.size()));
  return places;
}

void close_groups(const Gating& gating, std::vector<double>& values) {
  const size_t size = values.size() / gating.group_count;
  std::vector<double> sums;
  for (size_t group = 0; group < gating.group_count; ++group) {
    const auto own = std::span(values).subspan(group * size, size);
    double& sum = sums.emplace_back(0);
    for (const size_t place : largest(own, gating.group_values)) sum += own[place];
  }
  const std::vector<size_t> open = largest(sums, gating.chosen_groups);
  for (size_t expert = 0; expert < values.size(); ++expert) {
    if (std::ranges::find(open, expert / size) != open.end()) continue;
    values[expert] = -std::numeric_limits<double>::infinity();
  }
}

}  // namespace

std::vector<ReferenceChoice> reference_choice(const Gating& gating,
                                              const std::vector<double>& scores,
                                              const std::vector<float>& bias, size_t count) {
  const std::vector<double> values = values_of(gating.function, scores);
  std::vector<double> by_choice = values;
  for (size_t expert = 0; expert < bias.size(); ++expert) by_choice[expert] += double{bias[expert]};
  close_groups(gating, by_choice);
  std::vector<ReferenceChoice> choices;
  std::vector<double> weights;
  for (const size_t expert : largest(by_choice, count)) {
    choices.push_back({expert, 0});
    weights.push_back(values[expert]);
  }
  if (gating.function == GatingFunction::kChosenSoftmax) {
    weights = softmax(weights);
  } else if (gating.is_normalized) {
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (double& weight : weights) weight /= std::max(sum, std::ldexp(1.0, -14));
  }
  for (size_t place = 0; place < choices.size(); ++place) {
    choices[place].weight = weights[place] * double{gating.scale};
  }
  return choices;
}

}  // namespace lockstep
