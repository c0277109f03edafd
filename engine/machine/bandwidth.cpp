#include "engine/machine/bandwidth.h"

#include <emmintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "engine/machine/node_memory.h"
#include "engine/machine/workers.h"

namespace lockstep {
namespace {

constexpr size_t kBytesPerThread = 64U << 20U;
constexpr size_t kMostBytes = 1U << 30U;
constexpr int kRounds = 4;

// The sum of what lies there, so that nothing can be left out.
int64_t read_all(const std::byte* begin, size_t bytes) {
  const auto* from = reinterpret_cast<const __m128i*>(begin);
  __m128i sums[4] = {};
  for (size_t i = 0; i + 4 <= bytes / sizeof(__m128i); i += 4) {
    for (size_t lane = 0; lane < 4; ++lane) {
      sums[lane] = _mm_add_epi64(sums[lane], _mm_load_si128(from + i + lane));
    }
  }
  const __m128i sum =
      _mm_add_epi64(_mm_add_epi64(sums[0], sums[1]), _mm_add_epi64(sums[2], sums[3]));
  return _mm_cvtsi128_si64(sum);
}

}  // namespace

Result<double> measure_read_bandwidth(std::span<const int> cpus, int node) {
  auto workers = Workers::start(cpus);
  if (!workers) return std::unexpected(workers.error());
  const size_t bytes = std::min(kMostBytes, kBytesPerThread * cpus.size());
  const auto memory = NodeMemory::allocate({.bytes = bytes,
                                            .what = "a measurement of its bandwidth",
                                            .node = node,
                                            .workers = workers->get()});
  if (!memory) return std::unexpected(memory.error());
  constexpr size_t kLine = 64;
  const size_t each = bytes / cpus.size() / kLine * kLine;
  std::atomic<int64_t> sink = 0;
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    (*workers)->run([&](size_t worker) {
      sink.fetch_xor(read_all(memory->data() + worker * each, each), std::memory_order_relaxed);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(each * cpus.size()) / seconds.count());
  }
  return best;
}

}  // namespace lockstep
