#include "engine/machine/memory_speed.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <utility>

#include "engine/machine/memory_pass.h"
#include "engine/machine/node_memory.h"
#include "engine/machine/workers.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLine = 64;

struct alignas(kLine) Line {
  uint64_t next = 0;
  uint64_t unused[7] = {};
};

double elapsed_seconds(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The rate per second of what `pass` does `count` times: the best of as many passes as fit into the
// time, after one that warms up.
double best_rate(size_t count, double seconds, const std::function<void()>& pass) {
  pass();
  double best = 0;
  const Clock::time_point start = Clock::now();
  do {
    const Clock::time_point begin = Clock::now();
    pass();
    best = std::max(best, static_cast<double>(count) / elapsed_seconds(begin));
  } while (elapsed_seconds(start) < seconds);
  return best;
}

class Arena {
 public:
  Arena(Workers& workers, NodeMemory& memory, double seconds)
      : workers_(workers), memory_(memory), seconds_(seconds) {}

  // By the first `thread_count` of the workers; each has a part of its own.
  Bandwidth measure(size_t thread_count) {
    const size_t each = memory_.size_bytes() / workers_.count() / (2 * kLine) * (2 * kLine);
    const size_t bytes = each * thread_count;
    const auto pass = [&](auto work) {
      return [this, each, thread_count, work] {
        workers_.run([&](size_t worker) {
          if (worker < thread_count) work(memory_.data() + worker * each);
        });
      };
    };
    Bandwidth result;
    for (const auto read : {read_all, read_all_in_two_streams}) {
      const double rate = best_rate(bytes, seconds_, pass([this, each, read](std::byte* part) {
                                      sink_.fetch_xor(read(part, each), std::memory_order_relaxed);
                                    }));
      result.read = std::max(result.read, rate);
    }
    result.write =
        best_rate(bytes, seconds_, pass([each](std::byte* part) { write_all(part, each, 1); }));
    result.copy =
        best_rate(bytes / 2, seconds_,
                  pass([each](std::byte* part) { copy_all(part, each / 2, part + each / 2); }));
    return result;
  }

  // Seconds per step of a walk over all lines in one random cycle (Sattolo's algorithm), so that
  // neither caches nor prefetchers help.
  double measure_latency() {
    auto* lines = reinterpret_cast<Line*>(memory_.data());
    const size_t count = memory_.size_bytes() / sizeof(Line);
    double result = 0;
    workers_.run([&](size_t worker) {
      if (worker != 0) return;
      for (size_t line = 0; line < count; ++line) lines[line].next = line;
      std::minstd_rand random(1);
      for (size_t line = count - 1; line > 0; --line) {
        std::swap(lines[line].next, lines[draw(random, line)].next);
      }
      constexpr size_t kSteps = 10000;
      uint64_t line = 0;
      const auto walk = [&] {
        for (size_t step = 0; step < kSteps; ++step) line = lines[line].next;
      };
      result = 1 / best_rate(kSteps, seconds_, walk);
      sink_.fetch_xor(static_cast<int64_t>(line), std::memory_order_relaxed);
    });
    return result;
  }

 private:
  // From 0 to bound - 1.
  static size_t draw(std::minstd_rand& random, size_t bound) {
    const uint64_t wide = (static_cast<uint64_t>(random()) << 31U) ^ random();
    return static_cast<size_t>(wide % bound);
  }

  Workers& workers_;
  NodeMemory& memory_;
  double seconds_;
  std::atomic<int64_t> sink_ = 0;
};

Result<NodeMemory> take_memory(size_t bytes, int node, Workers& workers) {
  return NodeMemory::allocate(
      {.bytes = bytes, .what = "a measurement of its speed", .node = node, .workers = &workers});
}

using Clock = std::chrono::steady_clock;

constexpr size_t kBytesPerWorker = 64U << 20U;
constexpr size_t kMostBytes = 1U << 30U;
constexpr size_t kLines = 128;  // of two streams
constexpr int kRounds = 6;
// The passes of one round: long against the moment by which workers start apart.
constexpr int kPasses = 4;

// The workers of one place and the memory they read.
class Reader {
 public:
  static Result<std::unique_ptr<Reader>> make(const RankPlace& place) {
    std::unique_ptr<Reader> reader(new Reader());
    auto workers = Workers::start(place.cpus, false, place.node, place.processors);
    if (!workers) return std::unexpected(workers.error());
    reader->workers_ = std::move(*workers);
    const size_t count = place.cpus.size();
    auto memory = NodeMemory::allocate({.bytes = std::min(kMostBytes, kBytesPerWorker * count),
                                        .what = "a measurement of its bandwidth",
                                        .node = place.node,
                                        .workers = reader->workers_.get()});
    if (!memory) return std::unexpected(memory.error());
    reader->memory_ = std::move(*memory);
    reader->bytes_each_ = reader->memory_.size_bytes() / count / kLines * kLines;
    reader->seconds_.resize(count);
    return reader;
  }

  // By one stream per worker, or by two.
  void begin(bool two_streams) {
    two_streams_ = two_streams;
    workers_->begin(job_);
  }

  // Bytes per second of the round, by its slowest worker.
  double finish() {
    workers_->finish();
    const auto bytes = static_cast<double>(bytes_each_ * workers_->count() * kPasses);
    return bytes / *std::ranges::max_element(seconds_);
  }

 private:
  Reader() = default;

  void read(size_t worker) {
    const Clock::time_point start = Clock::now();
    for (int pass = 0; pass < kPasses; ++pass) {
      const std::byte* part = memory_.data() + worker * bytes_each_;
      const int64_t sum =
          two_streams_ ? read_all_in_two_streams(part, bytes_each_) : read_all(part, bytes_each_);
      sink_.fetch_xor(sum, std::memory_order_relaxed);
    }
    seconds_[worker] = std::chrono::duration<double>(Clock::now() - start).count();
  }

  NodeMemory memory_;
  size_t bytes_each_ = 0;
  bool two_streams_ = false;
  std::vector<double> seconds_;  // by worker
  std::atomic<int64_t> sink_ = 0;
  std::function<void(size_t)> job_ = [this](size_t worker) { read(worker); };
  std::unique_ptr<Workers> workers_;
};

}  // namespace

Result<double> measure_copy(const MemoryMeasurement& measurement, int to_node) {
  auto workers = Workers::start(measurement.cpus);
  if (!workers) return std::unexpected(workers.error());
  const auto from = take_memory(measurement.bytes / 2, measurement.node, **workers);
  if (!from) return std::unexpected(from.error());
  const auto to = take_memory(measurement.bytes / 2, to_node, **workers);
  if (!to) return std::unexpected(to.error());
  const size_t count = measurement.cpus.size();
  const size_t bytes = std::min(from->size_bytes(), to->size_bytes());
  const size_t each = bytes / count / (2 * kLine) * (2 * kLine);
  return best_rate(each * count, measurement.seconds, [&] {
    (*workers)->run([&](size_t worker) {
      const size_t begin = worker * each;
      copy_all(from->data() + begin, each, to->data() + begin);
    });
  });
}

Result<MemorySpeed> measure_memory(const MemoryMeasurement& measurement) {
  auto workers = Workers::start(measurement.cpus);
  if (!workers) return std::unexpected(workers.error());
  auto memory = take_memory(measurement.bytes, measurement.node, **workers);
  if (!memory) return std::unexpected(memory.error());
  Arena arena(**workers, *memory, measurement.seconds);
  MemorySpeed speed;
  speed.pages = page_kind_name(memory->page_kind());
  speed.all_cores = arena.measure(measurement.cpus.size());
  speed.one_core = measurement.cpus.size() == 1 ? speed.all_cores : arena.measure(1);
  speed.latency_seconds = arena.measure_latency();
  return speed;
}

Result<std::vector<double>> measure_read_bandwidths(std::span<const RankPlace> places) {
  std::vector<std::unique_ptr<Reader>> readers;
  for (const RankPlace& place : places) {
    auto reader = Reader::make(place);
    if (!reader) return std::unexpected(reader.error());
    readers.push_back(std::move(*reader));
  }
  std::vector<double> best(places.size());
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& reader : readers) reader->begin(round % 2 == 1);
    for (size_t rank = 0; rank < readers.size(); ++rank) {
      best[rank] = std::max(best[rank], readers[rank]->finish());
    }
  }
  return best;
}

}  // namespace lockstep
