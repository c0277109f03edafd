// A simulated GPU: its memory is the host's, its kernels run on the host (HostGrid, by
// launch() in tests/engine/kernels/cuda/gpu_code.h). What a real one leaves undefined is made to be
// seen: memory that nobody has written holds NaNs, a copy from or to memory that no GPU can reach
// is a failed CHECK, and so is a kernel that is launched on a GPU that the thread does not use().
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>

#include "engine/machine/gpu_device.h"

namespace lockstep {

// The hardware, as a test sets it and sees it; it outlives the devices that are opened on it. Any
// thread may call.
class HostGpu {
 public:
  explicit HostGpu(int index = 0, size_t memory_bytes = size_t{256} << 20U)
      : index_(index), memory_bytes_(memory_bytes) {}

  int index() const { return index_; }

  // As it was made: nothing is refused, nothing is counted. No device is open.
  void reset(size_t memory_bytes = size_t{256} << 20U);

  // From now on no more than so much can be allocated.
  void set_memory(size_t bytes);
  // From now on no more than so much memory can be pinned at a time.
  void set_pinnable(size_t bytes);
  // From now on it reaches no other GPU's memory, or every one's.
  void isolate(bool isolated);
  // From now on it says that it reaches other GPUs' memory, and what it writes there is lost.
  void lose_writes(bool lost);
  // Streams run what is enqueued not at once but when they are waited for: as late as may be.
  void run_late(bool late);
  // After so many more calls, of the device and of its streams, every call fails: "the GPU is
  // lost". What is enqueued then is not run.
  void lose(size_t calls_left = 0);
  // From now on nothing that is enqueued runs, and a stream that is waited for is not done; it says
  // so after `patience`, whatever the deadline is.
  void hang(std::chrono::nanoseconds patience);
  // From now on what is enqueued runs while it is waited for, and goes on when the thread that
  // waits for it has given up: after `patience`, whatever the deadline is.
  void outlast(std::chrono::nanoseconds patience);

  struct Counts {
    size_t allocated_bytes = 0;  // at the moment
    size_t pinned_bytes = 0;     // at the moment
    size_t allocations = 0;      // what follows: ever
    size_t pinnings = 0;
    size_t streams = 0;
    size_t copies = 0;
    size_t launches = 0;  // of kernels, by themselves or in recordings that were launched
    size_t graph_launches = 0;
    size_t calls = 0;  // of everything that can fail
    // The most that was enqueued on a stream by itself since the stream was last waited for.
    size_t ahead_max = 0;

    bool operator==(const Counts&) const = default;
  };
  Counts counts() const;

 private:
  friend class HostDevice;
  friend class HostDeviceStream;
  friend class HostEvent;
  friend Result<std::unique_ptr<GpuDevice>> open_host_device(int gpu);

  struct State {
    size_t calls_left = std::numeric_limits<size_t>::max();
    size_t pinnable_bytes = std::numeric_limits<size_t>::max();
    bool is_isolated = false;
    bool loses_writes = false;
    bool runs_late = false;
    std::optional<std::chrono::nanoseconds> hangs;
    std::optional<std::chrono::nanoseconds> outlasts;
    bool has_failed = false;  // a call has said that the GPU is lost, or not done in time
    Counts counts;
  };

  // Counts a call; false once the GPU is lost.
  bool call();
  bool is_lost() const;
  bool loses_writes() const;
  std::optional<std::chrono::nanoseconds> hangs() const;
  std::optional<std::chrono::nanoseconds> outlasts() const;

  int index_;
  size_t memory_bytes_;  // GUARDED_BY(mutex_), as the state is
  State state_;
  mutable std::mutex mutex_;
};

class HostDevice final : public GpuDevice {
 public:
  // The GPU must outlive it, and it what is allocated, pinned and made here.
  explicit HostDevice(HostGpu& gpu) : gpu_(gpu) {}
  ~HostDevice() override;
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;

  int index() const override { return gpu_.index(); }
  Result<GpuMemory> allocate(size_t bytes, std::string_view what) override;
  Result<GpuMemory> pin(std::span<std::byte> host) override;
  Result<std::unique_ptr<GpuStream>> make_stream() override;
  Result<std::unique_ptr<GpuEvent>> make_event() override;
  Result<void> use() override;
  Result<void> reach(int gpu) override;
  bool is_lost() const override;

 private:
  void give_back(std::span<std::byte> bytes, bool pinned) override;

  HostGpu& gpu_;
  size_t memory_count_ = 0;  // that has not been given back; GUARDED_BY(gpu_.mutex_)
};

// For GpuPlatform::open, which is a plain function and so cannot know a test's own GPUs: those of
// the process, 0 to 15.
inline constexpr int kHostGpuCount = 16;
HostGpu& host_gpu(int index);
Result<std::unique_ptr<GpuDevice>> open_host_device(int gpu);

}  // namespace lockstep
