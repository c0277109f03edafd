#include "tests/engine/machine/host_device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "tests/engine/kernels/cuda/launch_stream.h"

namespace lockstep {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kPageBytes = 4096;
constexpr std::chrono::microseconds kBetweenLooks{20};
constexpr int kGarbage = 0xFF;  // NaN in every format of floats; the largest count

// An enqueued step: a kernel of gpu_code.h, or other work.
struct Step {
  LaunchStream::Kernel begin = nullptr;  // or none, and
  std::function<bool()> work = nullptr;  // false: it is not done yet
  bool is_launch = false;
  bool lets_next_begin = false;  // a kernel that follows it, before it is done
};
using Steps = std::deque<Step>;

// Whose kernels the thread launches, and what it records.
thread_local const HostGpu* used_gpu = nullptr;
thread_local int recordings = 0;

// The memory that any GPU of the process can reach: memory that is pinned for one is for all.
class Reachable {
 public:
  static Reachable& memory() {
    static Reachable reachable;
    return reachable;
  }

  // `owner`: the GPU whose memory it is; none: the host's. False where some of it is there already.
  bool add(std::span<const std::byte> bytes, const HostGpu* owner = nullptr) {
    const std::lock_guard lock(mutex_);
    const auto after = regions_.lower_bound(bytes.data());
    if (after != regions_.end() && after->first < bytes.data() + bytes.size()) return false;
    if (after != regions_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second.bytes > bytes.data()) return false;
    }
    regions_.emplace(bytes.data(), Region{bytes.size(), owner});
    return true;
  }

  void remove(std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = regions_.find(bytes.data());
    CHECK(found != regions_.end() && found->second.bytes == bytes.size(),
          "{} bytes at {} are no memory", bytes.size(), static_cast<const void*>(bytes.data()));
    regions_.erase(found);
  }

  // Whose memory that is.
  const HostGpu* check(const void* address, size_t bytes) const {
    const auto* const begin = static_cast<const std::byte*>(address);
    const std::lock_guard lock(mutex_);
    auto found = regions_.upper_bound(begin);
    const bool reachable =
        found != regions_.begin() && begin + bytes <= (--found)->first + found->second.bytes;
    CHECK(reachable, "{} bytes at {} lie in no GPU's memory and are not pinned", bytes, address);
    return found->second.owner;
  }

 private:
  mutable std::mutex mutex_;
  struct Region {
    size_t bytes;
    const HostGpu* owner;
  };
  std::map<const std::byte*, Region> regions_;  // GUARDED_BY(mutex_)
};

std::unexpected<Error> lost(const HostGpu& gpu, std::string_view call) {
  return machine_refused("gpu{}: {}: the GPU is lost", gpu.index(), call);
}

struct HostRecording final : GpuRecording {
  Steps steps;
};

// How often an event was recorded, and the last of these that has come.
struct EventRounds {
  std::atomic<uint64_t> recorded = 0;
  std::atomic<uint64_t> come = 0;
};

}  // namespace

class HostEvent final : public GpuEvent {
 public:
  explicit HostEvent(HostGpu& gpu) : gpu_(gpu) {}

  Result<bool> has_come() const override;
  const HostGpu& gpu() const { return gpu_; }
  // They last as long as something that is enqueued knows them.
  const std::shared_ptr<EventRounds>& rounds() const { return rounds_; }

 private:
  HostGpu& gpu_;
  std::shared_ptr<EventRounds> rounds_ = std::make_shared<EventRounds>();
};

class HostDeviceStream final : public GpuStream, public LaunchStream {
 public:
  explicit HostDeviceStream(HostGpu& gpu) : gpu_(gpu) {}
  ~HostDeviceStream() override {
    CHECK(recording_ == nullptr, "a stream of gpu{} ends while it records", gpu_.index());
    if (outlasting_.valid()) outlasting_.wait();
    if (!gpu_.is_lost() && !gpu_.hangs()) run_enqueued();
  }
  HostDeviceStream(const HostDeviceStream&) = delete;
  HostDeviceStream& operator=(const HostDeviceStream&) = delete;

  void* handle() override { return static_cast<LaunchStream*>(this); }
  Result<void> copy(void* to, const void* from, size_t bytes) override;
  Result<void> clear(void* to, size_t bytes) override;
  Result<void> record(GpuEvent& event) override;
  Result<void> wait_for(const GpuEvent& event) override;
  Result<void> begin_recording() override;
  Result<std::unique_ptr<GpuRecording>> end_recording() override;
  Result<void> play(const GpuRecording& recording) override;
  Result<void> wait(std::chrono::nanoseconds deadline) override {
    return wait_for_end(deadline, [] { return false; });
  }
  Result<void> wait_until(const GpuEvent& event, std::chrono::nanoseconds deadline) override;

  void enqueue_kernel(Kernel begin) override;
  void enqueue_library(std::function<void()> work) override;
  void enqueue_waiting(std::function<bool()> work) override;

 private:
  using Rest = std::move_only_function<void()>;
  // Whether what is waited for has come before the end of all that is enqueued.
  using HasCome = std::function<bool()>;

  void launch(Step step);
  void enqueue(Step step);
  void run_unless_late();
  void count_ahead();
  // False: something waits for another stream.
  bool run_enqueued(const HasCome& has_come = [] { return false; });
  // The same until `deadline` where that is an event of another stream.
  bool run_until(std::chrono::steady_clock::time_point deadline, const HasCome& has_come);
  bool run_first();
  // False: it goes on.
  bool run_for(std::chrono::nanoseconds patience, std::chrono::steady_clock::time_point deadline,
               const HasCome& has_come);
  Result<void> wait_for_end(std::chrono::nanoseconds deadline, const HasCome& has_come);
  void count(size_t HostGpu::Counts::*what) {
    const std::lock_guard lock(gpu_.mutex_);
    ++(gpu_.state_.counts.*what);
  }

  HostGpu& gpu_;
  std::unique_ptr<HostRecording> recording_;
  Steps enqueued_;
  Rest begun_;                    // of the first that is enqueued, or none
  bool waits_ = false;            // what is enqueued, for another stream
  bool awaits_event_ = false;     // by wait_for()
  size_t ahead_ = 0;              // how much was enqueued since the last wait
  std::future<bool> outlasting_;  // run_enqueued(), by a thread of its own
};

void HostDeviceStream::enqueue(Step step) {
  if (recording_ != nullptr) {
    recording_->steps.push_back(std::move(step));
    return;
  }
  if (gpu_.is_lost()) return;
  enqueued_.push_back(std::move(step));
  run_unless_late();
}

void HostDeviceStream::run_unless_late() {
  const bool late = [this] {
    const std::lock_guard lock(gpu_.mutex_);
    return gpu_.state_.runs_late || gpu_.state_.outlasts;
  }();
  if (!late && !waits_ && !gpu_.hangs()) run_enqueued();
}

void HostDeviceStream::count_ahead() {
  if (recording_ != nullptr) return;
  ++ahead_;
  const std::lock_guard lock(gpu_.mutex_);
  gpu_.state_.counts.ahead_max = std::max(gpu_.state_.counts.ahead_max, ahead_);
}

bool HostDeviceStream::run_enqueued(const HasCome& has_come) {
  waits_ = false;
  while (!enqueued_.empty() && !has_come()) {
    waits_ = !run_first();
    if (waits_) return false;
    enqueued_.pop_front();
  }
  return true;
}

// A kernel that follows another one begins as early as a GPU lets it: when that one has begun, and
// whatever was before it is done.
bool HostDeviceStream::run_first() {
  const Step& first = enqueued_.front();
  Rest rest = std::exchange(begun_, nullptr);
  if (!rest && first.begin) rest = first.begin();
  const bool is_followed = enqueued_.size() > 1 && enqueued_[1].begin;
  if (first.lets_next_begin && is_followed) begun_ = enqueued_[1].begin();
  if (rest) {
    rest();
  } else if (!first.work()) {
    return false;
  }
  if (first.is_launch) count(&HostGpu::Counts::launches);
  return true;
}

bool HostDeviceStream::run_until(std::chrono::steady_clock::time_point deadline,
                                 const HasCome& has_come) {
  while (!run_enqueued(has_come)) {
    if (!awaits_event_ || std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return true;
}

bool HostDeviceStream::run_for(std::chrono::nanoseconds patience,
                               std::chrono::steady_clock::time_point deadline,
                               const HasCome& has_come) {
  if (!outlasting_.valid()) {
    outlasting_ =
        std::async(std::launch::async, [=, this] { return run_until(deadline, has_come); });
  }
  return outlasting_.wait_for(patience) == std::future_status::ready && outlasting_.get();
}

void HostDeviceStream::enqueue_kernel(Kernel begin) {
  launch({.begin = std::move(begin), .is_launch = true, .lets_next_begin = true});
}

void HostDeviceStream::enqueue_library(std::function<void()> work) {
  const auto run = [work = std::move(work)] {
    work();
    return true;
  };
  launch({.work = run, .is_launch = true, .lets_next_begin = true});
}

void HostDeviceStream::enqueue_waiting(std::function<bool()> work) {
  launch({.work = std::move(work), .is_launch = true});
}

void HostDeviceStream::launch(Step step) {
  CHECK(used_gpu == &gpu_, "a kernel for gpu{} is launched by a thread that uses another",
        gpu_.index());
  count_ahead();
  enqueue(std::move(step));
}

Result<void> HostDeviceStream::copy(void* to, const void* from, size_t bytes) {
  if (!gpu_.call()) return lost(gpu_, "a copy");
  if (bytes == 0) return {};
  count(&HostGpu::Counts::copies);
  count_ahead();
  enqueue({.work = [=, &gpu = gpu_] {
    const HostGpu* const owner = Reachable::memory().check(to, bytes);
    Reachable::memory().check(from, bytes);
    const bool lost = gpu.loses_writes() && owner != nullptr && owner != &gpu;
    if (!lost) std::memmove(to, from, bytes);
    return true;
  }});
  return {};
}

Result<void> HostDeviceStream::clear(void* to, size_t bytes) {
  if (!gpu_.call()) return lost(gpu_, "clearing memory");
  if (bytes == 0) return {};
  enqueue({.work = [=] {
    Reachable::memory().check(to, bytes);
    std::memset(to, 0, bytes);
    return true;
  }});
  return {};
}

Result<void> HostDeviceStream::record(GpuEvent& event) {
  const auto& own = dynamic_cast<const HostEvent&>(event);
  CHECK(&own.gpu() == &gpu_, "an event of gpu{} is recorded on a stream of gpu{}",
        own.gpu().index(), gpu_.index());
  CHECK(recording_ == nullptr, "an event is recorded while gpu{} records", gpu_.index());
  if (!gpu_.call()) return lost(gpu_, "recording an event");
  enqueue({.work = [rounds = own.rounds(), round = ++own.rounds()->recorded] {
    rounds->come.store(round, std::memory_order_release);
    return true;
  }});
  return {};
}

Result<void> HostDeviceStream::wait_for(const GpuEvent& event) {
  const auto& awaited = dynamic_cast<const HostEvent&>(event);
  CHECK(recording_ == nullptr, "an event is waited for while gpu{} records", gpu_.index());
  if (!gpu_.call()) return lost(gpu_, "waiting for an event");
  enqueue({.work = [this, rounds = awaited.rounds(), round = awaited.rounds()->recorded.load()] {
    awaits_event_ = rounds->come.load(std::memory_order_acquire) < round;
    return !awaits_event_;
  }});
  return {};
}

Result<void> HostDeviceStream::begin_recording() {
  if (!gpu_.call()) return lost(gpu_, "beginning a recording");
  CHECK(recording_ == nullptr, "gpu{} records already on this stream", gpu_.index());
  recording_ = std::make_unique<HostRecording>();
  ++recordings;
  return {};
}

Result<std::unique_ptr<GpuRecording>> HostDeviceStream::end_recording() {
  CHECK(recording_ != nullptr, "gpu{} records nothing on this stream", gpu_.index());
  --recordings;
  auto recording = std::exchange(recording_, nullptr);
  if (!gpu_.call()) return lost(gpu_, "ending a recording");
  return recording;
}

Result<void> HostDeviceStream::play(const GpuRecording& recording) {
  CHECK(recording_ == nullptr, "gpu{} launches a recording while it records", gpu_.index());
  if (!gpu_.call()) return lost(gpu_, "playing a recording");
  count(&HostGpu::Counts::graph_launches);
  count_ahead();
  if (gpu_.is_lost()) return {};
  for (const Step& step : dynamic_cast<const HostRecording&>(recording).steps) {
    enqueued_.push_back(step);
  }
  run_unless_late();
  return {};
}

Result<void> HostDeviceStream::wait_until(const GpuEvent& event,
                                          std::chrono::nanoseconds deadline) {
  const auto& awaited = dynamic_cast<const HostEvent&>(event);
  CHECK(&awaited.gpu() == &gpu_, "gpu{} is waited for by an event of gpu{}", gpu_.index(),
        awaited.gpu().index());
  return wait_for_end(deadline, [rounds = awaited.rounds()] {
    return rounds->come.load(std::memory_order_acquire) ==
           rounds->recorded.load(std::memory_order_relaxed);
  });
}

Result<void> HostDeviceStream::wait_for_end(std::chrono::nanoseconds deadline,
                                            const HasCome& has_come) {
  CHECK(recording_ == nullptr, "gpu{} is waited for while it records", gpu_.index());
  if (!gpu_.call()) return lost(gpu_, "waiting for it");
  const auto hangs = gpu_.hangs();
  if (hangs) std::this_thread::sleep_for(*hangs);
  const auto outlasts = gpu_.outlasts();
  const auto end = std::chrono::steady_clock::now() + deadline;
  if (!hangs && (outlasts ? run_for(*outlasts, end, has_come) : run_until(end, has_come))) {
    ahead_ = 0;
    return {};
  }
  {
    const std::lock_guard lock(gpu_.mutex_);
    gpu_.state_.has_failed = true;
  }
  return machine_refused("gpu{}: what it was to do was not done within {} ns", gpu_.index(),
                         deadline.count());
}

Result<bool> HostEvent::has_come() const {
  if (!gpu_.call()) return lost(gpu_, "asking for an event");
  return rounds_->come.load(std::memory_order_acquire) ==
         rounds_->recorded.load(std::memory_order_relaxed);
}

void HostGpu::reset(size_t memory_bytes) {
  const std::lock_guard lock(mutex_);
  CHECK(state_.counts.allocated_bytes == 0 && state_.counts.pinned_bytes == 0, "gpu{} is in use",
        index_);
  memory_bytes_ = memory_bytes;
  state_ = {};
}

void HostGpu::set_memory(size_t bytes) {
  const std::lock_guard lock(mutex_);
  memory_bytes_ = bytes;
}

void HostGpu::set_pinnable(size_t bytes) {
  const std::lock_guard lock(mutex_);
  state_.pinnable_bytes = bytes;
}

void HostGpu::isolate(bool isolated) {
  const std::lock_guard lock(mutex_);
  state_.is_isolated = isolated;
}

void HostGpu::lose_writes(bool lost) {
  const std::lock_guard lock(mutex_);
  state_.loses_writes = lost;
}

bool HostGpu::loses_writes() const {
  const std::lock_guard lock(mutex_);
  return state_.loses_writes;
}

void HostGpu::run_late(bool late) {
  const std::lock_guard lock(mutex_);
  state_.runs_late = late;
}

void HostGpu::lose(size_t calls_left) {
  const std::lock_guard lock(mutex_);
  state_.calls_left = calls_left;
}

void HostGpu::hang(std::chrono::nanoseconds patience) {
  const std::lock_guard lock(mutex_);
  state_.hangs = patience;
}

void HostGpu::outlast(std::chrono::nanoseconds patience) {
  const std::lock_guard lock(mutex_);
  state_.outlasts = patience;
}

std::optional<std::chrono::nanoseconds> HostGpu::outlasts() const {
  const std::lock_guard lock(mutex_);
  return state_.outlasts;
}

std::optional<std::chrono::nanoseconds> HostGpu::hangs() const {
  const std::lock_guard lock(mutex_);
  return state_.hangs;
}

HostGpu::Counts HostGpu::counts() const {
  const std::lock_guard lock(mutex_);
  return state_.counts;
}

bool HostGpu::is_lost() const {
  const std::lock_guard lock(mutex_);
  return state_.calls_left == 0;
}

bool HostGpu::call() {
  const std::lock_guard lock(mutex_);
  ++state_.counts.calls;
  state_.has_failed = state_.has_failed || state_.calls_left == 0;
  if (state_.calls_left == 0) return false;
  if (state_.calls_left != std::numeric_limits<size_t>::max()) --state_.calls_left;
  return true;
}

HostDevice::~HostDevice() {
  CHECK(memory_count_ == 0, "{} pieces of memory outlive gpu{}", memory_count_, index());
  if (used_gpu == &gpu_) used_gpu = nullptr;
}

Result<GpuMemory> HostDevice::allocate(size_t bytes, std::string_view what) {
  CHECK(recordings == 0, "memory for {} while a stream records", what);
  if (!gpu_.call()) return lost(gpu_, fmt::format("taking memory for {}", what));
  if (bytes == 0) return GpuMemory();
  const std::lock_guard lock(gpu_.mutex_);
  HostGpu::Counts& counts = gpu_.state_.counts;
  const size_t left = gpu_.memory_bytes_ - std::min(gpu_.memory_bytes_, counts.allocated_bytes);
  if (bytes > left) {
    return machine_refused("gpu{}: {} bytes of memory for {}: {} of {} are free", index(), bytes,
                           what, left, gpu_.memory_bytes_);
  }
  void* memory = nullptr;
  CHECK(posix_memalign(&memory, kAlignment, bytes) == 0, "no {} bytes of memory", bytes);
  std::memset(memory, kGarbage, bytes);
  const std::span<std::byte> span(static_cast<std::byte*>(memory), bytes);
  Reachable::memory().add(span, &gpu_);
  counts.allocated_bytes += bytes;
  ++counts.allocations;
  ++memory_count_;
  return GpuMemory(*this, span, false);
}

Result<GpuMemory> HostDevice::pin(std::span<std::byte> host) {
  CHECK(recordings == 0, "memory is pinned while a stream records");
  CHECK(reinterpret_cast<uintptr_t>(host.data()) % kPageBytes == 0 &&
            host.size() % kPageBytes == 0 && !host.empty(),
        "{} bytes at {} are not whole pages", host.size(), static_cast<void*>(host.data()));
  if (!gpu_.call()) return lost(gpu_, "pinning memory");
  const std::lock_guard lock(gpu_.mutex_);
  const size_t pinned = gpu_.state_.counts.pinned_bytes;
  if (pinned + host.size() > gpu_.state_.pinnable_bytes || !Reachable::memory().add(host)) {
    return machine_refused("gpu{}: {} bytes of the host's memory cannot be pinned", index(),
                           host.size());
  }
  gpu_.state_.counts.pinned_bytes += host.size();
  ++gpu_.state_.counts.pinnings;
  ++memory_count_;
  return GpuMemory(*this, host, true);
}

void HostDevice::give_back(std::span<std::byte> bytes, bool pinned) {
  CHECK(recordings == 0, "memory is given back while a stream records");
  Reachable::memory().remove(bytes);
  if (!pinned) std::free(bytes.data());
  const std::lock_guard lock(gpu_.mutex_);
  HostGpu::Counts& counts = gpu_.state_.counts;
  (pinned ? counts.pinned_bytes : counts.allocated_bytes) -= bytes.size();
  --memory_count_;
}

Result<std::unique_ptr<GpuStream>> HostDevice::make_stream() {
  if (!gpu_.call()) return lost(gpu_, "making a stream");
  {
    const std::lock_guard lock(gpu_.mutex_);
    ++gpu_.state_.counts.streams;
  }
  return std::make_unique<HostDeviceStream>(gpu_);
}

Result<std::unique_ptr<GpuEvent>> HostDevice::make_event() {
  if (!gpu_.call()) return lost(gpu_, "making an event");
  return std::make_unique<HostEvent>(gpu_);
}

Result<void> HostDevice::use() {
  if (!gpu_.call()) return lost(gpu_, "using it");
  used_gpu = &gpu_;
  return {};
}

Result<void> HostDevice::reach(int gpu) {
  if (!gpu_.call()) return lost(gpu_, fmt::format("reaching gpu{}", gpu));
  const std::lock_guard lock(gpu_.mutex_);
  if (!gpu_.state_.is_isolated || gpu == index()) return {};
  return machine_refused("gpu{} cannot reach the memory of gpu{}", index(), gpu);
}

bool HostDevice::is_lost() const {
  const std::lock_guard lock(gpu_.mutex_);
  return gpu_.state_.has_failed;
}

HostGpu& host_gpu(int index) {
  static std::array<HostGpu, kHostGpuCount> gpus = [] {
    return []<size_t... kIndex>(std::index_sequence<kIndex...>) {
      return std::array<HostGpu, kHostGpuCount>{HostGpu(static_cast<int>(kIndex))...};
    }
    (std::make_index_sequence<kHostGpuCount>());
  }();
  CHECK(index >= 0 && index < kHostGpuCount, "gpu{} is not simulated", index);
  return gpus[static_cast<size_t>(index)];
}

Result<std::unique_ptr<GpuDevice>> open_host_device(int gpu) {
  HostGpu& simulated = host_gpu(gpu);
  if (!simulated.call()) return lost(simulated, "opening it");
  return std::make_unique<HostDevice>(simulated);
}

}  // namespace lockstep
