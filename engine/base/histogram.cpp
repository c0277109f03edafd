#include "engine/base/histogram.h"

#include <algorithm>

namespace lockstep {

Histogram::Histogram(std::span<const double> upper_bounds)
    : upper_bounds_(upper_bounds.begin(), upper_bounds.end()),
      buckets_(std::make_unique<std::atomic<uint64_t>[]>(upper_bounds.size() + 1)) {}

void Histogram::observe(double value) {
  const auto bucket = std::lower_bound(upper_bounds_.begin(), upper_bounds_.end(), value);
  buckets_[static_cast<size_t>(bucket - upper_bounds_.begin())].fetch_add(
      1, std::memory_order_relaxed);
  double sum = sum_.load(std::memory_order_relaxed);
  while (!sum_.compare_exchange_weak(sum, sum + value, std::memory_order_relaxed)) {
  }
}

HistogramSnapshot Histogram::snapshot() const {
  HistogramSnapshot result;
  result.upper_bounds = upper_bounds_;
  result.sum = sum_.load(std::memory_order_relaxed);
  for (size_t index = 0; index <= upper_bounds_.size(); ++index) {
    result.bucket_counts.push_back(buckets_[index].load(std::memory_order_relaxed));
    result.count += result.bucket_counts.back();
  }
  return result;
}

}  // namespace lockstep
