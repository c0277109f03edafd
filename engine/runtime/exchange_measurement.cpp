#include "engine/runtime/exchange_measurement.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "engine/base/checked_math.h"
#include "engine/base/range.h"
#include "engine/collectives/shared_memory.h"
#include "engine/runtime/rank.h"

namespace lockstep {
namespace {

constexpr size_t kRounds = 9;
constexpr size_t kLine = 64;

constexpr double kRoundSeconds = 0.005;
constexpr double kMostRepeats = 2000;

// Whole cache lines.
Range share_lines(Range total, size_t index, size_t count) {
  const Range lines = share({0, total.size() / kLine}, index, count);
  return {total.begin + lines.begin * kLine, total.begin + lines.end * kLine};
}

// One rank's view. Its arena: two buffers that take turns, then the sum.
struct Exchanger {
  Rank& rank;
  Peers peers;
  std::vector<size_t> contributors;
  ExchangeKind kind;
  size_t bytes;
  size_t buffer_bytes;
  const size_t& exchange_count;  // outlives this; the same for all ranks

  std::byte* at(size_t offset) const {
    return reinterpret_cast<std::byte*>(rank.arenas()[Arena::kExchange]) + offset;
  }

  void meet(size_t worker) const {
    rank.workers().barrier().arrive(worker);
    rank.workers().barrier().wait_for_all_ranks(worker);
  }

  void gather(size_t worker, std::byte* buffer) const {
    const Range slice = share_lines({0, bytes}, peers.rank, peers.distances.size());
    const Range mine = share_lines(slice, worker, rank.workers().count());
    change(buffer, mine);
    push_rows(peers, buffer + mine.begin, 0, 1, mine.end - mine.begin);
    meet(worker);
    look_at(buffer);
  }

  // Two barriers, as in a pass: before it the partial results are complete.
  void reduce(size_t worker, std::byte* buffer) const {
    const size_t floats = bytes / sizeof(float);
    change(buffer, share_lines({0, bytes}, worker, rank.workers().count()));
    meet(worker);
    all_reduce({.partial = reinterpret_cast<const float*>(buffer),
                .partial_stride = floats,
                .output = reinterpret_cast<float*>(at(2 * buffer_bytes)),
                .output_stride = floats,
                .row_count = 1,
                .column_count = floats,
                .contributors = contributors},
               peers, rank.workers().barrier(), worker, rank.workers().count());
    meet(worker);
    look_at(at(2 * buffer_bytes));
  }

  void work(size_t worker) const {
    for (size_t exchange = 0; exchange < exchange_count; ++exchange) {
      std::byte* const buffer = at(exchange % 2 * buffer_bytes);
      switch (kind) {
        case ExchangeKind::kBarrier:
          meet(worker);
          break;
        case ExchangeKind::kAllGather:
          gather(worker, buffer);
          break;
        case ExchangeKind::kAllReduce:
          reduce(worker, buffer);
          break;
      }
    }
  }

  static void change(std::byte* buffer, Range range) {
    for (size_t offset = range.begin; offset < range.end; offset += kLine) {
      auto& value = *reinterpret_cast<volatile float*>(buffer + offset);
      value = 1;
    }
  }

  void look_at(const std::byte* buffer) const {
    for (size_t offset = 0; offset < bytes; offset += kLine) {
      static_cast<void>(*reinterpret_cast<const volatile float*>(buffer + offset));
    }
  }
};

double run(Ranks& ranks, const std::vector<std::function<void(size_t)>>& jobs) {
  const auto start = std::chrono::steady_clock::now();
  for (size_t rank = 0; rank < ranks.count(); ++rank) ranks[rank].workers().begin(jobs[rank]);
  for (size_t rank = 0; rank < ranks.count(); ++rank) ranks[rank].workers().finish();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

size_t repeats_for(double seconds) {
  const double repeats = kRoundSeconds * kFewRepeats / std::max(seconds, 1e-9);
  return static_cast<size_t>(std::clamp(repeats, double{kFewRepeats}, kMostRepeats));
}

Result<ExchangeMeasurement> ExchangeMeasurement::make(std::span<const RankPlace> places,
                                                      size_t most_bytes) {
  const size_t buffer_bytes = round_up<size_t>(std::max<size_t>(most_bytes, 1), 4096);
  auto ranks = Ranks::make_bare(places, 3 * buffer_bytes);
  if (!ranks) return std::unexpected(ranks.error());
  return ExchangeMeasurement(std::move(*ranks), buffer_bytes);
}

double ExchangeMeasurement::measure(ExchangeKind kind, size_t bytes) {
  Ranks& ranks = *ranks_;
  bytes = std::min(most_bytes_, round_up(std::max<size_t>(bytes, 1), kLine));
  std::vector<size_t> all;
  for (size_t rank = 0; rank < ranks.count(); ++rank) all.push_back(rank);
  size_t exchange_count = kFewRepeats;
  std::vector<std::function<void(size_t)>> jobs;
  for (size_t rank = 0; rank < ranks.count(); ++rank) {
    Peers peers{rank, {}};
    for (const size_t other : all) {
      peers.distances.push_back(static_cast<std::ptrdiff_t>(
          ranks[other].arenas()[Arena::kExchange] - ranks[rank].arenas()[Arena::kExchange]));
    }
    const Exchanger exchanger{ranks[rank], peers, all, kind, bytes, most_bytes_, exchange_count};
    jobs.emplace_back([exchanger](size_t worker) { exchanger.work(worker); });
  }
  run(ranks, jobs);  // warms up
  exchange_count = repeats_for(run(ranks, jobs));
  std::vector<double> rounds;
  for (size_t round = 0; round < kRounds; ++round) rounds.push_back(run(ranks, jobs));
  std::ranges::nth_element(rounds, rounds.begin() + kRounds / 2);
  return rounds[kRounds / 2] / static_cast<double>(exchange_count);
}

Result<double> measure_exchange(std::span<const RankPlace> places, size_t bytes) {
  if (places.size() < 2) return 0.0;
  auto measurement = ExchangeMeasurement::make(places, bytes);
  if (!measurement) return std::unexpected(measurement.error());
  return measurement->measure(ExchangeKind::kAllGather, bytes);
}

}  // namespace lockstep
