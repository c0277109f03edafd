// A GPU as what uses it sees it: memory, and streams on which copies and kernels follow one
// another. CUDA's is in cuda_device.cpp; tests have one whose memory is the host's.
//
// Any thread may call, several at the same time, but for one stream: its calls come from one thread
// at a time. An event is recorded by one thread at a time. A call that fails names the GPU and what
// was asked; after a failure other than too little memory, refused pinning or a GPU out of reach,
// it is of no more use to this process.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "engine/base/result.h"

namespace lockstep {

class GpuDevice;

// Memory that is given back at its end: of the GPU, or the host's while the GPU may reach it.
class GpuMemory {
 public:
  GpuMemory() = default;
  GpuMemory(GpuDevice& device, std::span<std::byte> bytes, bool pinned)
      : device_(&device), bytes_(bytes), pinned_(pinned) {}
  GpuMemory(GpuMemory&& other) noexcept { *this = std::move(other); }
  GpuMemory& operator=(GpuMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(bytes_, other.bytes_);
    std::swap(pinned_, other.pinned_);
    return *this;
  }
  ~GpuMemory();

  std::byte* data() const { return bytes_.data(); }
  size_t size_bytes() const { return bytes_.size(); }

 private:
  GpuDevice* device_ = nullptr;
  std::span<std::byte> bytes_;
  bool pinned_ = false;
};

// The work that was enqueued on a stream between begin_recording() and end_recording(), with the
// very arguments (CUDA's graphs): it can be launched again and again.
class GpuRecording {
 public:
  virtual ~GpuRecording() = default;
};

// A place in the work of a GPU's streams, for streams of any GPU to wait for (CUDA's events). As it
// is made it has come.
class GpuEvent {
 public:
  virtual ~GpuEvent() = default;

  // Whether all is done that was before it when it was last recorded. Fails as a stream's calls do.
  virtual Result<bool> has_come() const = 0;
};

class GpuStream {
 public:
  virtual ~GpuStream() = default;

  // The stream that kernels are launched on (a cudaStream_t).
  virtual void* handle() = 0;

  // From any memory to any other. The host's is pinned and stays as it is until the copy is done.
  virtual Result<void> copy(void* to, const void* from, size_t bytes) = 0;
  virtual Result<void> clear(void* to, size_t bytes) = 0;

  // The event, of this GPU, is from now on behind all that has been enqueued here.
  virtual Result<void> record(GpuEvent& event) = 0;
  // All that is enqueued here from now on waits for the event, of any GPU, as it was last recorded:
  // another thread has to have done so before. The GPU waits, and not the thread.
  virtual Result<void> wait_for(const GpuEvent& event) = 0;

  // Between the two nothing runs: it is recorded. Copies and kernels alone.
  virtual Result<void> begin_recording() = 0;
  virtual Result<std::unique_ptr<GpuRecording>> end_recording() = 0;
  virtual Result<void> play(const GpuRecording& recording) = 0;

  // Returns when all that has been enqueued is done. Fails with kMachineRefused when it is not by
  // the deadline, or when some of it failed.
  virtual Result<void> wait(std::chrono::nanoseconds deadline) = 0;
  // The same of what was enqueued here before the event was last recorded here.
  virtual Result<void> wait_until(const GpuEvent& event, std::chrono::nanoseconds deadline) = 0;
};

class GpuDevice {
 public:
  virtual ~GpuDevice() = default;

  virtual int index() const = 0;  // Gpu::index

  // Allocates the GPU's memory, 256-byte aligned, with any contents. `what`: for the message, "the
  // KV cache". Zero bytes are no memory. Fails with kMachineRefused: how much was asked for, how
  // much there is.
  virtual Result<GpuMemory> allocate(size_t bytes, std::string_view what) = 0;
  // Makes memory of the host (whole pages of it that are there already) reachable for the GPU, at
  // the same address, and keeps it where it is. The memory must outlive what is returned.
  virtual Result<GpuMemory> pin(std::span<std::byte> host) = 0;

  virtual Result<std::unique_ptr<GpuStream>> make_stream() = 0;
  virtual Result<std::unique_ptr<GpuEvent>> make_event() = 0;

  // From now on the calling thread's kernels are launched on this GPU.
  virtual Result<void> use() = 0;

  // From now on this GPU's kernels can read and write all memory of another (`gpu`: its index).
  // Fails with kMachineRefused where no link lets them; both are as they were then.
  virtual Result<void> reach(int gpu) = 0;

  // Whether a call, of a stream's as well, has said that the GPU is of no more use: what is asked
  // of it from then on may never return.
  virtual bool is_lost() const = 0;

 private:
  friend class GpuMemory;
  virtual void give_back(std::span<std::byte> bytes, bool pinned) = 0;
};

inline GpuMemory::~GpuMemory() {
  if (device_ != nullptr && !bytes_.empty()) device_->give_back(bytes_, pinned_);
}

// Fails with kMachineRefused. In builds with CUDA alone.
Result<std::unique_ptr<GpuDevice>> open_cuda_device(int gpu);

}  // namespace lockstep
