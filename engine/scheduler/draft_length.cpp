#include "engine/scheduler/draft_length.h"

#include <algorithm>
#include <vector>

namespace lockstep {
namespace {

// A tried token's weight when the next one is tried: about the last thirty count.
constexpr double kKeptByTried = 0.97;
// And after a pass without a draft: after 35 of them half is forgotten.
constexpr double kKeptByRest = 0.98;
// Before anything is known half of a token has been accepted and half rejected.
constexpr double kPriorAccepted = 0.5;
constexpr double kPriorTokens = 1;

constexpr double kKeptPass = 0.95;
// The least variance of the passes' rows that says something about a row's time.
constexpr double kLeastVariance = 0.02;
// After so many passes without that it is forgotten.
constexpr size_t kPassesAlikeMost = 200;
// The weight of three passes.
constexpr double kLeastWeight = 2.5;
// A pass that was held up says little about the next ones.
constexpr double kPassesSeen = 4;

constexpr double kMargin = 1.25;
constexpr double kLeastChance = 0.05;
constexpr double kSpeedKept = 0.9;  // by a stream beside others' drafts

}  // namespace

double DraftAcceptance::rate() const {
  return (accepted_ + kPriorAccepted) / (accepted_ + rejected_ + kPriorTokens);
}

void DraftAcceptance::add(size_t accepted, bool rejected) {
  for (size_t token = 0; token < accepted; ++token) {
    accepted_ = kKeptByTried * accepted_ + 1;
    rejected_ *= kKeptByTried;
  }
  if (!rejected) return;
  accepted_ *= kKeptByTried;
  rejected_ = kKeptByTried * rejected_ + 1;
}

void DraftAcceptance::rest() {
  accepted_ *= kKeptByRest;
  rejected_ *= kKeptByRest;
}

void RowCost::add(size_t rows, double seconds) {
  if (seconds <= 0) return;
  const auto count = static_cast<double>(rows);
  if (weight_ > kPassesSeen) {
    const double expected = seconds_ / weight_ + slope_.value_or(0) * (count - rows_ / weight_);
    seconds = std::min(seconds, 2 * std::max(expected, seconds_ / weight_));
  }
  for (double* sum : {&weight_, &rows_, &seconds_, &rows_squared_, &rows_seconds_}) {
    *sum *= kKeptPass;
  }
  weight_ += 1;
  rows_ += count;
  seconds_ += seconds;
  rows_squared_ += count * count;
  rows_seconds_ += count * seconds;
  const double mean = rows_ / weight_;
  const double variance = rows_squared_ / weight_ - mean * mean;
  if (variance < kLeastVariance) {
    if (++passes_alike_ > kPassesAlikeMost) slope_.reset();
    return;
  }
  passes_alike_ = 0;
  slope_ = std::max(0.0, (rows_seconds_ / weight_ - mean * seconds_ / weight_) / variance);
}

double RowCost::seconds(size_t rows) const {
  if (weight_ == 0) return 0;
  const double beyond_mean = static_cast<double>(rows) - rows_ / weight_;
  return std::max(0.0, seconds_ / weight_ + slope_.value_or(0) * beyond_mean);
}

double RowCost::share_of_next(size_t rows) const {
  const auto count = static_cast<double>(std::max<size_t>(rows, 1));
  if (!slope_) return kAssumedShare / (1 + (count - 1) * kAssumedShare);
  const double pass = seconds(std::max<size_t>(rows, 1));
  // A row takes no more than its part of the pass.
  const double most = 1 / count;
  return pass > 0 ? std::min(*slope_ / pass, most) : most;
}

size_t RowCost::draft_tokens_most() const {
  if (slope_) return kDraftTokensMost;
  return weight_ > kLeastWeight ? 1 : 0;
}

double least_draft_chance(const RowCost& cost, size_t streams) {
  return kLeastChance + kMargin * static_cast<double>(streams) * cost.share_of_next(streams);
}

double expected_tokens(const DraftAcceptance& acceptance, size_t drafted) {
  double tokens = 1;
  double chance = 1;
  for (size_t place = 0; place < drafted; ++place) {
    chance *= acceptance.rate();
    tokens += chance;
  }
  return tokens;
}

size_t draft_rows_most(const RowCost& cost, size_t streams, double least_tokens) {
  const double rows = (least_tokens / kSpeedKept - 1) / cost.share_of_next(streams);
  return rows < static_cast<double>(kDraftTokensMost * streams) ? static_cast<size_t>(rows)
                                                                : kDraftTokensMost * streams;
}

size_t draft_length(const DraftAcceptance& acceptance, double least_chance, bool computed_again) {
  const double rate = acceptance.rate();
  size_t length = 0;
  for (double before = 1; length < kDraftTokensMost; before *= rate, ++length) {
    const auto count = static_cast<double>(length + 1);
    const double rows = computed_again ? 1 + count * before * (1 - rate) : 1;
    if (before * rate < least_chance * rows) break;
  }
  return length;
}

size_t shared_draft_length(std::span<const SharedDraft> drafts, double row_share, double pass_share,
                           size_t streams) {
  std::vector<double> chances(drafts.size(), 1);
  std::vector<double> tokens(drafts.size(), 1);  // expected, of a pass
  const double row_price = kMargin * static_cast<double>(streams) * row_share;
  const double pass_price = kMargin * static_cast<double>(streams) * pass_share;
  double slowdown = 1;
  size_t length = 0;
  for (; length < kDraftTokensMost; ++length) {
    double gain = 0;
    size_t rows = 0;
    double least_tokens = drafts.size() < streams ? 1 : static_cast<double>(kDraftTokensMost);
    for (size_t index = 0; index < drafts.size(); ++index) {
      if (drafts[index].most > length) {
        chances[index] *= drafts[index].rate;
        tokens[index] += chances[index];
        gain += chances[index] - row_price;
        ++rows;
      }
      least_tokens = std::min(least_tokens, tokens[index]);
    }
    slowdown += pass_share + static_cast<double>(rows) * row_share;
    if (rows == 0 || gain < pass_price || least_tokens < kSpeedKept * slowdown) break;
  }
  return length;
}

}  // namespace lockstep
