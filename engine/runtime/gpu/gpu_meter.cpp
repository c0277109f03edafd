#include "engine/runtime/gpu/gpu_meter.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "engine/base/checked_math.h"
#include "engine/machine/device_choice.h"
#include "engine/machine/node_memory.h"
#include "engine/runtime/gpu/gpu_executor.h"
#include "engine/runtime/gpu/gpu_program.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kWhat = "a measurement of its speed";

// More of the host's memory than its caches hold.
constexpr size_t kHostBytes = size_t{256} << 20U;
// Launches of a recording.
constexpr size_t kLaunches = 100;
// A round is so long that its beginning and end do not show; and there are so many at least.
constexpr double kMeterRoundSeconds = 0.02;
constexpr int kRoundsMin = 4;
// In a round: more than any GPU has time for.
constexpr size_t kTimesMax = size_t{1} << 20U;
// The side of a product's matrices: more tiles than any GPU computes at once.
constexpr size_t kSideMax = 8192;
constexpr size_t kSquareBytes = 2 * sizeof(uint16_t) + sizeof(float);  // of an element: both, a sum

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// bf16 of any sign and fraction, from 2^-7 up to 2. The numbers are SplitMix64's (Steele, Lea and
// Flood, "Fast splittable pseudorandom number generators", 2014).
void fill_at_random_bf16(std::span<uint64_t> words) {
  uint64_t state = 0;
  for (uint64_t& word : words) {
    state += 0x9E3779B97F4A7C15;
    uint64_t mixed = state;
    mixed = (mixed ^ (mixed >> 30U)) * 0xBF58476D1CE4E5B9;
    mixed = (mixed ^ (mixed >> 27U)) * 0x94D049BB133111EB;
    mixed ^= mixed >> 31U;
    // The last three of an exponent's eight bits are random, below 01111.
    word = (mixed & 0x83FF83FF83FF83FF) | 0x3C003C003C003C00;
  }
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
  return stream_->wait(platform_.settings.pass_deadline);
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

Result<double> GpuMeter::product() {
  if (platform_.open_matrix_library == nullptr) {
    return machine_refused("gpu{}: there is no library to multiply matrices with", gpu());
  }
  if (auto used = device_->use(); !used) return std::unexpected(used.error());
  // A power of two, so that the matrices lie as the library wants them.
  const size_t elements = memory_bytes() / kSquareBytes;
  const size_t side = std::min(
      kSideMax, std::bit_floor(static_cast<size_t>(std::sqrt(static_cast<double>(elements)))));
  const size_t operand_bytes = side * side * sizeof(uint16_t);
  if (auto filled = fill_at_random(2 * operand_bytes); !filled) {
    return std::unexpected(filled.error());
  }
  const auto workspace = device_->allocate(kGpuLibraryBytes, kWhat);
  if (!workspace) return std::unexpected(workspace.error());
  const auto library =
      platform_.open_matrix_library(gpu(), {workspace->data(), workspace->size_bytes()});
  if (!library) return std::unexpected(library.error());
  std::byte* const operands = memory_.data();
  const GpuMatrixProduct product = {
      .weights = reinterpret_cast<const uint16_t*>(operands),
      .rows = side,
      .columns = side,
      .inputs = reinterpret_cast<const uint16_t*>(operands + operand_bytes),
      .input_stride = side,
      .tokens = side,
      .sums = reinterpret_cast<float*>(operands + 2 * operand_bytes),
      .sum_stride = side};
  const auto measure = [&]() -> Result<double> {
    if (auto prepared = (*library)->prepare(stream_->handle(), product); !prepared) {
      return std::unexpected(prepared.error());
    }
    return seconds_of([&] {
      (*library)->multiply(stream_->handle(), product);
      return (*library)->state();
    });
  };
  const auto seconds = measure();
  if (is_lost()) (*library)->abandon();
  if (!seconds) return seconds;
  return 2 * std::pow(static_cast<double>(side), 3) / *seconds;
}

// Multiplied are the first `bytes` of the memory.
Result<void> GpuMeter::fill_at_random(size_t bytes) {
  const auto host = NodeMemory::allocate({.bytes = bytes, .what = kWhat});
  if (!host) return std::unexpected(host.error());
  fill_at_random_bf16({reinterpret_cast<uint64_t*>(host->data()), bytes / sizeof(uint64_t)});
  const auto pinned = device_->pin({host->data(), host->size_bytes()});
  if (!pinned) return std::unexpected(pinned.error());
  if (auto copied = stream_->copy(memory_.data(), host->data(), bytes); !copied) return copied;
  return stream_->wait(platform_.settings.pass_deadline);
}

Result<double> GpuMeter::bytes_per_second(size_t bytes, const Enqueue& enqueue) {
  const auto seconds = seconds_of(enqueue);
  if (!seconds) return seconds;
  return static_cast<double>(bytes) / *seconds;
}

// The first turns bring the GPU's clocks up, and find how many make a round.
Result<double> GpuMeter::seconds_of(const Enqueue& enqueue) {
  if (auto used = device_->use(); !used) return std::unexpected(used.error());
  const double round_seconds = std::min(kMeterRoundSeconds, seconds_ / kRoundsMin);
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
    if (auto waited = stream_->wait(platform_.settings.pass_deadline); !waited) {
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
