// A histogram of durations or counts that one thread or several write and a scrape reads, without
// a lock: each bucket is one relaxed counter, so a snapshot may be a few observations apart between
// its buckets, never torn within one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace lockstep {

struct HistogramSnapshot {
  std::vector<double> upper_bounds;     // ascending; the last bucket, +infinity, is not listed
  std::vector<uint64_t> bucket_counts;  // one more than upper_bounds; not cumulative
  uint64_t count = 0;
  double sum = 0;
};

class Histogram {
 public:
  explicit Histogram(std::span<const double> upper_bounds);

  void observe(double value);
  HistogramSnapshot snapshot() const;

 private:
  std::vector<double> upper_bounds_;
  std::unique_ptr<std::atomic<uint64_t>[]> buckets_;
  std::atomic<double> sum_ = 0;
};

inline Histogram::Histogram(std::span<const double> upper_bounds)
    : upper_bounds_(upper_bounds.begin(), upper_bounds.end()),
      buckets_(std::make_unique<std::atomic<uint64_t>[]>(upper_bounds.size() + 1)) {}

inline void Histogram::observe(double value) {
  const auto bucket = std::lower_bound(upper_bounds_.begin(), upper_bounds_.end(), value);
  buckets_[static_cast<size_t>(bucket - upper_bounds_.begin())].fetch_add(
      1, std::memory_order_relaxed);
  double sum = sum_.load(std::memory_order_relaxed);
  while (!sum_.compare_exchange_weak(sum, sum + value, std::memory_order_relaxed)) {
  }
}

inline HistogramSnapshot Histogram::snapshot() const {
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
