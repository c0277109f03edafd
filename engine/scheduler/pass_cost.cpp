#include "engine/scheduler/pass_cost.h"

#include <algorithm>
#include <limits>

namespace lockstep {
namespace {

constexpr double kKept = 0.95;  // of a sum, with every pass
// A sum of squares below this has been forgotten: amounts are at least 1.
constexpr double kForgotten = 1e-6;
// About so many passes of a kind, and it is known what such passes take.
constexpr double kPassesKnown = 4;
// Few rounds suffice: the last parts are nearly right.
constexpr int kRounds = 8;

}  // namespace

double prompt_work(size_t begin, size_t count) {
  const auto tokens = static_cast<double>(count);
  const double keys_mean = static_cast<double>(begin) + (tokens + 1) / 2;
  return tokens * (1 + keys_mean / kKeysPerToken);
}

size_t prompt_tokens_within(double work, size_t begin, size_t most) {
  size_t fitting = 0;
  size_t beyond = most + 1;
  while (fitting + 1 < beyond) {
    const size_t middle = fitting + (beyond - fitting) / 2;
    (prompt_work(begin, middle) <= work ? fitting : beyond) = middle;
  }
  return fitting;
}

PassCost::Parts PassCost::amounts(const PassLoad& load) {
  Parts amounts = {};
  amounts[kWork] = load.prompt_work;
  amounts[kPrompts] = load.prompt_work > 0 ? 1 : 0;
  amounts[kGenerated] = static_cast<double>(load.generated);
  amounts[kPass] = 1;
  return amounts;
}

void PassCost::Sums::add(const Parts& amounts, double time) {
  for (size_t part = 0; part < kPartCount; ++part) {
    seconds[part] = kKept * seconds[part] + amounts[part] * time;
    for (size_t other = 0; other < kPartCount; ++other) {
      double& sum = products[part][other];
      sum = kKept * sum + amounts[part] * amounts[other];
    }
  }
}

void PassCost::add(const PassLoad& load, double seconds) {
  if (seconds <= 0) return;
  Sums& sums = load.prompt_work > 0 ? with_prompts_ : without_prompts_;
  // A pass that was held up says little about the next ones.
  const bool is_known = sums.products[kPass][kPass] > kPassesKnown;
  sums.add(amounts(load), is_known ? std::min(seconds, 2 * this->seconds(load)) : seconds);
  work_most_ = std::max(work_most_, load.prompt_work);
  fit();
}

// Gives each part in turn the value that fits best beside the others. Work comes first: while few
// passes are known, all of the time counts as its own, so that larger chunks are expected to take
// longer than they do rather than shorter.
void PassCost::fit() {
  for (int round = 0; round < kRounds; ++round) {
    for (size_t part = 0; part < kPartCount; ++part) {
      const auto product = [&](size_t other) {
        return without_prompts_.products[part][other] + with_prompts_.products[part][other];
      };
      if (product(part) < kForgotten) continue;
      double left = without_prompts_.seconds[part] + with_prompts_.seconds[part];
      for (size_t other = 0; other < kPartCount; ++other) {
        if (other != part) left -= product(other) * parts_[other];
      }
      parts_[part] = std::max(left / product(part), 0.0);
    }
  }
}

double PassCost::seconds(const PassLoad& load) const {
  const Parts amounts = PassCost::amounts(load);
  double sum = 0;
  for (size_t part = 0; part < kPartCount; ++part) sum += amounts[part] * parts_[part];
  return sum;
}

double PassCost::work_within(double seconds, size_t generated) const {
  const double left = seconds - this->seconds({.generated = generated}) - prompt_overhead();
  if (left <= 0) return 0;
  const double work =
      parts_[kWork] > 0 ? left / parts_[kWork] : std::numeric_limits<double>::infinity();
  return std::min(work, 2 * work_most_);
}

}  // namespace lockstep
