// One exchange between two ranks of one core each, its barrier included. "bare" exchanges the same
// bytes again and again; "used" has each rank write what it gives before, and read all it has got
// after, as a pass does: caches then hold lines where they are in a pass. Compare medians:
//   collectives_benchmark --benchmark_repetitions=9 --benchmark_enable_random_interleaving=true
//     --benchmark_report_aggregates_only=true
#include <benchmark/benchmark.h>
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "engine/collectives/shared_memory.h"
#include "engine/machine/topology.h"
#include "tests/engine/collectives/simulated_ranks.h"

namespace lockstep {
namespace {

constexpr size_t kRanks = 2;
constexpr size_t kLargestBytes = 16U << 20U;
constexpr uint32_t kWarmUpRounds = 20;

const std::vector<size_t> kContributors = {0, 1};

// The layout of an exchange arena; two buffers in turn.
struct Exchange {
  MadeUpRanks& ranks;
  size_t rank = 0;
  size_t bytes = 0;
  uint32_t round = 0;

  size_t other() const { return 1 - rank; }
  size_t slice_bytes() const { return bytes / kRanks; }
  std::byte* buffer(size_t of) const { return ranks.at<std::byte>(of, round % 2 * kLargestBytes); }
  std::byte* slice() const { return buffer(rank) + rank * slice_bytes(); }
  std::byte* output() const { return ranks.at<std::byte>(rank, 2 * kLargestBytes); }
  uint16_t* bf16(size_t which) const {
    return ranks.at<uint16_t>(rank, (6 + which) * kLargestBytes / 2);
  }
  void meet() const { ranks.meet(rank, 0); }
};

void gather_push(const Exchange& exchange) {
  push_rows(exchange.ranks.peers(exchange.rank), exchange.slice(), 0, 1, exchange.slice_bytes());
  exchange.meet();
}

void gather_push_past_caches(const Exchange& exchange) {
  const auto* from = reinterpret_cast<const __m128i*>(exchange.slice());
  auto* to = reinterpret_cast<__m128i*>(exchange.buffer(exchange.other()) +
                                        exchange.rank * exchange.slice_bytes());
  for (size_t index = 0; index < exchange.slice_bytes() / sizeof(__m128i); ++index) {
    _mm_stream_si128(to + index, _mm_load_si128(from + index));
  }
  _mm_sfence();
  exchange.meet();
}

void gather_pull(const Exchange& exchange) {
  exchange.meet();
  const size_t offset = exchange.other() * exchange.slice_bytes();
  std::memcpy(exchange.buffer(exchange.rank) + offset, exchange.buffer(exchange.other()) + offset,
              exchange.slice_bytes());
}

void reduce(const Exchange& exchange, bool bf16) {
  const size_t count = exchange.bytes / sizeof(float);
  const AllReduce sum{.partial = reinterpret_cast<const float*>(exchange.buffer(exchange.rank)),
                      .partial_stride = count,
                      .output = reinterpret_cast<float*>(exchange.output()),
                      .output_stride = count,
                      .row_count = 1,
                      .column_count = count,
                      .contributors = kContributors,
                      .bf16_partial = bf16 ? exchange.bf16(0) : nullptr,
                      .bf16_sum = bf16 ? exchange.bf16(1) : nullptr};
  all_reduce(sum, exchange.ranks.peers(exchange.rank), exchange.ranks.barrier(exchange.rank), 0, 1);
  exchange.meet();
}

void reduce_f32(const Exchange& exchange) {
  reduce(exchange, /*bf16=*/false);
}

void reduce_bf16(const Exchange& exchange) {
  reduce(exchange, /*bf16=*/true);
}

void barrier_alone(const Exchange& exchange) {
  exchange.meet();
}

struct Operation {
  const char* name;
  void (*run)(const Exchange&);
  bool sums;  // gives all of its buffer and gets the output, not a slice and the others'
};

constexpr Operation kOperations[] = {
    {"barrier", barrier_alone, false},
    {"all_gather/push", gather_push, false},
    {"all_gather/push_past_caches", gather_push_past_caches, false},
    {"all_gather/pull", gather_pull, false},
    {"all_reduce/f32", reduce_f32, true},
    {"all_reduce/bf16", reduce_bf16, true},
};

void write(std::byte* bytes, size_t count, uint32_t round) {
  auto* values = reinterpret_cast<float*>(bytes);
  for (size_t index = 0; index < count / sizeof(float); ++index) {
    values[index] = static_cast<float>(round);
  }
}

float read(const std::byte* bytes, size_t count) {
  __m128 sums[4] = {};
  for (size_t offset = 0; offset + sizeof(sums) <= count; offset += sizeof(sums)) {
    for (size_t lane = 0; lane < 4; ++lane) {
      sums[lane] = _mm_add_ps(
          sums[lane], _mm_load_ps(reinterpret_cast<const float*>(bytes + offset) + 4 * lane));
    }
  }
  return _mm_cvtss_f32(_mm_add_ps(_mm_add_ps(sums[0], sums[1]), _mm_add_ps(sums[2], sums[3])));
}

void use_around(const Operation& operation, const Exchange& exchange) {
  operation.sums ? write(exchange.buffer(exchange.rank), exchange.bytes, exchange.round)
                 : write(exchange.slice(), exchange.slice_bytes(), exchange.round);
  if (operation.sums) exchange.meet();  // partials are complete
  operation.run(exchange);
  benchmark::DoNotOptimize(
      read(operation.sums ? exchange.output() : exchange.buffer(exchange.rank), exchange.bytes));
}

void measure(benchmark::State& state, MadeUpRanks* ranks, const Operation* operation, bool used) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const auto rounds = static_cast<uint32_t>(std::clamp<size_t>((64U << 20U) / bytes, 10, 20000));
  for (auto _ : state) {
    double seconds = 0;
    ranks->run([&](size_t rank, size_t) {
      Exchange exchange{*ranks, rank, bytes};
      std::chrono::steady_clock::time_point start;
      for (; exchange.round < kWarmUpRounds + rounds; ++exchange.round) {
        if (exchange.round == kWarmUpRounds) start = std::chrono::steady_clock::now();
        used ? use_around(*operation, exchange) : operation->run(exchange);
      }
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
      if (rank == 0) seconds = passed.count() / rounds;
    });
    state.SetIterationTime(seconds);
  }
}

int run(int count, char** values) {
  const std::vector<int> cpus = one_cpu_per_core(read_topology());
  if (cpus.size() < kRanks) {
    std::fprintf(stderr, "two cores are needed\n");
    return 1;
  }
  MadeUpRanks ranks({{cpus[0]}, {cpus[1]}}, 4 * kLargestBytes, false);
  for (const Operation& operation : kOperations) {
    for (const bool used : {false, true}) {
      benchmark::RegisterBenchmark(
          (std::string(operation.name) + (used ? "/used" : "/bare")).c_str(), measure, &ranks,
          &operation, used)
          ->RangeMultiplier(4)
          ->Range(1 << 10, kLargestBytes)
          ->UseManualTime()
          ->Iterations(1);
    }
  }
  benchmark::Initialize(&count, values);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int count, char** values) {
  return lockstep::run(count, values);
}
