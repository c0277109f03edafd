#include "engine/runtime/gpu/gpu_sum_trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include "engine/base/check.h"

namespace lockstep {
namespace {

// A round is of so many bytes: of few sums where they are large, of several in any case, so that
// who comes late to the first counts for little. Neither was measured.
constexpr size_t kRoundBytes = 4 << 20;
constexpr size_t kRoundSumsMin = 4;
constexpr size_t kRoundSumsMax = 32;

// Nanoseconds per sum.
Result<uint64_t> time_round(const GpuSumTrial& trial, const GpuAllReduce& sum) {
  const size_t bytes = sum.column_count * sizeof(float);
  const size_t sums = std::clamp(kRoundBytes / bytes, kRoundSumsMin, kRoundSumsMax);
  const auto spent = [&] { return std::atomic_ref(*trial.peers.spent_ns).load(); };
  const uint64_t before = spent();
  for (size_t index = 0; index < sums; ++index) {
    trial.collectives.all_reduce(trial.stream, sum, trial.peers);
  }
  if (auto waited = trial.wait(); !waited) return std::unexpected(waited.error());
  return (spent() - before) / sums;
}

// Both ways in turns, so that a GPU whose clock is still rising favours neither. The first round
// warms up.
Result<GpuSumRounds> time_size(const GpuSumTrial& trial, GpuAllReduce sum) {
  GpuSumRounds rounds = {.bytes = sum.column_count * sizeof(float)};
  for (size_t round = 0; round <= kGpuSumTrialRounds; ++round) {
    for (const bool two_shots : {false, true}) {
      sum.two_shots = two_shots;
      const auto time = time_round(trial, sum);
      if (!time) return std::unexpected(time.error());
      if (round > 0) (two_shots ? rounds.two_shots_ns : rounds.one_shot_ns)[round - 1] = *time;
    }
  }
  return rounds;
}

uint64_t slowest_median(std::span<const std::vector<GpuSumRounds>> ranks, size_t size,
                        GpuSumRounds::Times GpuSumRounds::*way) {
  GpuSumRounds::Times slowest = {};
  for (const std::vector<GpuSumRounds>& rank : ranks) {
    for (size_t round = 0; round < slowest.size(); ++round) {
      slowest[round] = std::max(slowest[round], (rank[size].*way)[round]);
    }
  }
  std::ranges::sort(slowest);
  return slowest[slowest.size() / 2];
}

}  // namespace

Result<std::vector<GpuSumRounds>> time_gpu_sums(const GpuSumTrial& trial) {
  CHECK(trial.peers.spent_ns != nullptr, "rank {} counts no time", trial.peers.rank);
  std::vector<size_t> all(trial.peers.rank_count);
  std::iota(all.begin(), all.end(), size_t{0});
  std::vector<GpuSumRounds> rounds;
  for (size_t bytes = kGpuSumTrialBytesMin; bytes <= trial.bytes_max; bytes *= 2) {
    auto size = time_size(trial, {.partial = trial.partial,
                                  .output = trial.output,
                                  .row_count = 1,
                                  .column_count = bytes / sizeof(float),
                                  .contributors = all});
    if (!size) return std::unexpected(std::move(size).error());
    rounds.push_back(*size);
  }
  return rounds;
}

std::vector<GpuSumTime> slowest_medians(std::span<const std::vector<GpuSumRounds>> ranks) {
  std::vector<GpuSumTime> times;
  for (size_t size = 0; size < ranks.front().size(); ++size) {
    times.push_back({.bytes = ranks.front()[size].bytes,
                     .one_shot_ns = slowest_median(ranks, size, &GpuSumRounds::one_shot_ns),
                     .two_shots_ns = slowest_median(ranks, size, &GpuSumRounds::two_shots_ns)});
  }
  return times;
}

std::string sum_times_text(std::span<const GpuSumTime> times) {
  std::string text;
  for (const GpuSumTime& time : times) {
    text += fmt::format("{}{} KiB {:.1f}/{:.1f} us", text.empty() ? "" : ", ", time.bytes >> 10U,
                        static_cast<double>(time.one_shot_ns) / 1000,
                        static_cast<double>(time.two_shots_ns) / 1000);
  }
  return text;
}

}  // namespace lockstep
