#include "engine/runtime/gpu/gpu_trials.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/machine/node_memory.h"

namespace lockstep {
namespace {

using Words = std::array<uint32_t, 64>;

// A GPU with memory of its own and the host's, through which words go to and from it.
class Station {
 public:
  static Result<std::unique_ptr<Station>> open(GpuDevice& device,
                                               std::chrono::nanoseconds deadline) {
    if (auto used = device.use(); !used) return std::unexpected(used.error());
    constexpr std::string_view kWhat = "words that GPUs send one another to try their links";
    auto stream = device.make_stream();
    if (!stream) return std::unexpected(stream.error());
    auto memory = device.allocate(sizeof(Words), kWhat);
    if (!memory) return std::unexpected(memory.error());
    auto host = NodeMemory::allocate({.bytes = sizeof(Words), .what = kWhat});
    if (!host) return std::unexpected(host.error());
    auto pinned = device.pin({host->data(), host->size_bytes()});
    if (!pinned) return std::unexpected(pinned.error());
    return std::unique_ptr<Station>(new Station(device, deadline, std::move(*stream),
                                                std::move(*memory), std::move(*host),
                                                std::move(*pinned)));
  }

  int gpu() const { return device_.index(); }

  Result<void> send(const Words& words, const Station& other) {
    *in_host() = words;
    if (auto own = copy(memory_.data(), host_.data()); !own) return own;
    return copy(other.memory_.data(), memory_.data());
  }
  Result<Words> receive() {
    if (auto got = copy(host_.data(), memory_.data()); !got) return std::unexpected(got.error());
    return *in_host();
  }

 private:
  Station(GpuDevice& device, std::chrono::nanoseconds deadline, std::unique_ptr<GpuStream> stream,
          GpuMemory memory, NodeMemory host, GpuMemory pinned)
      : device_(device),
        deadline_(deadline),
        stream_(std::move(stream)),
        memory_(std::move(memory)),
        host_(std::move(host)),
        pinned_(std::move(pinned)) {}

  Words* in_host() { return reinterpret_cast<Words*>(host_.data()); }

  Result<void> copy(void* to, const void* from) {
    if (auto used = device_.use(); !used) return used;
    auto copied = stream_->copy(to, from, sizeof(Words));
    return copied ? stream_->wait(deadline_) : copied;
  }

  GpuDevice& device_;
  std::chrono::nanoseconds deadline_;
  std::unique_ptr<GpuStream> stream_;
  GpuMemory memory_;
  NodeMemory host_;
  GpuMemory pinned_;
};

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

Result<void> try_gpu_links(std::span<GpuDevice* const> devices, std::chrono::nanoseconds deadline) {
  std::vector<std::unique_ptr<Station>> stations;
  for (GpuDevice* device : devices) {
    auto station = Station::open(*device, deadline);
    if (!station) return std::unexpected(station.error());
    stations.push_back(std::move(*station));
  }
  uint32_t link = 0;
  for (const auto& writer : stations) {
    for (const auto& reader : stations) {
      if (reader == writer) continue;
      Words words;
      words.fill(0xA5000000U | ++link);
      if (auto sent = writer->send(words, *reader); !sent) return sent;
      const auto received = reader->receive();
      if (!received) return std::unexpected(received.error());
      if (*received == words) continue;
      return machine_refused(
          "gpu{} does not reach gpu{}'s memory, although the driver says so: an IOMMU or PCIe's "
          "access control (ACS) is in the way; turn it off in the firmware or boot with iommu=pt, "
          "or use --nccl-peer-access false, for sums by NCCL without it",
          writer->gpu(), reader->gpu());
    }
  }
  return {};
}

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
