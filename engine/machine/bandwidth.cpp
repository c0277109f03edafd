#include "engine/machine/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>

#include "engine/machine/memory_pass.h"
#include "engine/machine/node_memory.h"
#include "engine/machine/workers.h"

namespace lockstep {
namespace {

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
