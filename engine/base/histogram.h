// A histogram of durations or counts that one thread or several write and a scrape reads, without
// a lock: each bucket is one relaxed counter, so a snapshot may be a few observations apart between
// its buckets, never torn within one.
#pragma once

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

}  // namespace lockstep
