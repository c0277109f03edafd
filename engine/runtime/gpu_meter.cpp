#include "engine/runtime/gpu_meter.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/base/checked_math.h"
#include "engine/machine/device_choice.h"
#include "engine/machine/node_memory.h"
#include "engine/runtime/gpu_program.h"
#include "engine/runtime/gpu_rank.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kWhat = "a measurement of its speed";

// Of the host's memory: more than its caches hold.
constexpr size_t kHostBytes = size_t{256} << 20U;
// Of a recording.
constexpr size_t kLaunches = 100;
// Of a round, so that what begins and ends it is not seen in it; and how many there are at least.
constexpr double kRoundSeconds = 0.02;
constexpr int kRoundsMin = 4;
// In a round: more than any GPU has time for.
constexpr size_t kTimesMax = size_t{1} << 20U;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

Result<std::unique_ptr<GpuMeter>> GpuMeter::open(const GpuPlatform& platform, const Gpu& gpu,
                                                 const GpuMeterOptions& options) {
  auto device = platform.open(gpu.index);
  if (!device) return std::unexpected(device.error());
  std::unique_ptr<GpuMeter> meter(new GpuMeter(platform, std::move(*device), options.seconds));
  auto stream = meter->device_->make_stream();
  if (!stream) return std::unexpected(stream.error());
  meter->stream_ = std::move(*stream);
  const uint64_t bytes = std::min(options.memory_bytes, usable_bytes(gpu));
  if (auto taken = meter->take_memory(bytes); !taken) return std::unexpected(taken.error());
  return meter;
}

Result<void> GpuMeter::take_memory(uint64_t bytes) {
  // Copies go from one half to the other.
  bytes -= bytes % (2 * kGpuReadStretch);
  if (bytes == 0) {
    return machine_refused(
        "gpu{}: none of its memory is free to measure it with; end what else uses it", gpu());
  }
  auto memory = device_->allocate(bytes, kWhat);
  if (!memory) return std::unexpected(memory.error());
  memory_ = std::move(*memory);
  auto sums = device_->allocate(bytes / kGpuReadStretch * sizeof(uint32_t), kWhat);
  if (!sums) return std::unexpected(sums.error());
  sums_ = std::move(*sums);
  // Nobody reads what nobody has written.
  if (auto cleared = stream_->clear(memory_.data(), bytes); !cleared) return cleared;
  return stream_->wait(GpuRank::kPassDeadline);
}

void GpuMeter::enqueue_read(size_t bytes) {
  platform_.kernels->read_memory(stream_->handle(),
                                 {.memory = memory_.data(),
                                  .bytes = bytes,
                                  .sums = reinterpret_cast<uint32_t*>(sums_.data())});
}

Result<double> GpuMeter::read() {
  return bytes_per_second(memory_bytes(), [this] {
    enqueue_read(memory_bytes());
    return Result<void>();
  });
}

Result<double> GpuMeter::copy() {
  const size_t half = memory_bytes() / 2;
  return bytes_per_second(
      half, [&] { return stream_->copy(memory_.data() + half, memory_.data(), half); });
}

Result<double> GpuMeter::copy_to(const GpuMeter& other) {
  if (auto reached = device_->reach(other.gpu()); !reached) {
    return std::unexpected(reached.error());
  }
  const size_t bytes = std::min(memory_bytes(), other.memory_bytes());
  return bytes_per_second(
      bytes, [&] { return stream_->copy(other.memory_.data(), memory_.data(), bytes); });
}

Result<GpuMeter::HostSpeed> GpuMeter::copy_host(int node) {
  const size_t bytes = std::min<size_t>(kHostBytes, memory_bytes());
  const auto host = NodeMemory::allocate({.bytes = bytes, .what = kWhat, .node = node});
  if (!host) return std::unexpected(host.error());
  const auto pinned = device_->pin({host->data(), host->size_bytes()});
  if (!pinned) return std::unexpected(pinned.error());
  const auto from_host =
      bytes_per_second(bytes, [&] { return stream_->copy(memory_.data(), host->data(), bytes); });
  if (!from_host) return std::unexpected(from_host.error());
  const auto to_host =
      bytes_per_second(bytes, [&] { return stream_->copy(host->data(), memory_.data(), bytes); });
  if (!to_host) return std::unexpected(to_host.error());
  return HostSpeed{.from_host = *from_host, .to_host = *to_host};
}

Result<GpuMeter::LaunchTime> GpuMeter::launch() {
  const auto alone = seconds_of([this] {
    enqueue_read(0);
    return Result<void>();
  });
  if (!alone) return std::unexpected(alone.error());
  if (auto begun = stream_->begin_recording(); !begun) return std::unexpected(begun.error());
  for (size_t index = 0; index < kLaunches; ++index) enqueue_read(0);
  const auto recording = stream_->end_recording();
  if (!recording) return std::unexpected(recording.error());
  const auto recorded = seconds_of([&] { return stream_->play(**recording); });
  if (!recorded) return std::unexpected(recorded.error());
  return LaunchTime{.alone = *alone, .recorded = *recorded / kLaunches};
}

Result<double> GpuMeter::bytes_per_second(size_t bytes, const Enqueue& enqueue) {
  const auto seconds = seconds_of(enqueue);
  if (!seconds) return seconds;
  return static_cast<double>(bytes) / *seconds;
}

// The first turns bring the GPU's clocks up, and find how many make a round.
Result<double> GpuMeter::seconds_of(const Enqueue& enqueue) {
  if (auto used = device_->use(); !used) return std::unexpected(used.error());
  const double round_seconds = std::min(kRoundSeconds, seconds_ / kRoundsMin);
  size_t times = 1;
  while (true) {
    const auto seconds = seconds_of(enqueue, times);
    if (!seconds) return seconds;
    if (*seconds >= round_seconds || times == kTimesMax) break;
    // A little more than it seems; and a turn that was slow by chance is no measure for all.
    const double wanted = 1.2 * round_seconds / *seconds * static_cast<double>(times);
    const auto most = static_cast<double>(std::min(10 * times, kTimesMax));
    times = static_cast<size_t>(std::ceil(std::min(wanted, most)));
  }
  const Clock::time_point begin = Clock::now();
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRoundsMin || seconds_since(begin) < seconds_; ++round) {
    const auto seconds = seconds_of(enqueue, times);
    if (!seconds) return seconds;
    best = std::min(best, *seconds);
  }
  return best / static_cast<double>(times);
}

// Waits before CUDA would keep the thread.
Result<double> GpuMeter::seconds_of(const Enqueue& enqueue, size_t times) {
  const Clock::time_point begin = Clock::now();
  for (size_t done = 0; done < times;) {
    const size_t end = std::min(times, done + GpuProgram::kLaunchesAtOnce);
    for (; done < end; ++done) {
      if (auto enqueued = enqueue(); !enqueued) return std::unexpected(enqueued.error());
    }
    if (auto waited = stream_->wait(GpuRank::kPassDeadline); !waited) {
      return std::unexpected(waited.error());
    }
  }
  return seconds_since(begin);
}

Result<double> measure_gpu_read(const GpuPlatform& platform, const Gpu& gpu) {
  constexpr GpuMeterOptions kOptions = {.seconds = 0.1};
  const auto meter = GpuMeter::open(platform, gpu, kOptions);
  if (!meter) return std::unexpected(meter.error());
  return (*meter)->read();
}

}  // namespace lockstep
