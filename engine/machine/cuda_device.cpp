// NVIDIA's GPUs by the CUDA runtime. Run on emulated GPUs so far.
#include <cuda_runtime_api.h>

#include <atomic>
#include <thread>

#include "engine/machine/gpu_device.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// How a stream is waited for: most copies of a load are done within the first, a pass of generated
// tokens within the second. Sleeping comes where 50 us more or less are not seen. Not measured.
constexpr std::chrono::microseconds kLooking{20};
constexpr std::chrono::milliseconds kYielding{5};
constexpr std::chrono::microseconds kBetweenLooks{50};

// Takes a call's error, so that no later call returns it again. An error that the GPU does not
// recover from is not forgotten by that.
cudaError_t told(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

// Makes it the thread's GPU, and stays so: going back to another would make a context there.
class Using {
 public:
  explicit Using(int gpu) : error_(told(cudaSetDevice(gpu))) {}

  cudaError_t error() const { return error_; }

 private:
  cudaError_t error_;
};

// The GPU's state, shared by a device and its streams.
struct CudaGpu {
  int index = 0;
  // A call has failed for good. Nothing is given back then: calls might never return, and the end
  // of the process frees the rest. Read by every owner that gives something back.
  std::atomic<bool> lost = false;

  std::unexpected<Error> failed(std::string_view call, cudaError_t error) {
    lost.store(true, std::memory_order_relaxed);
    return machine_refused(
        "gpu{}: {} failed: {} ({}); look for Xid messages in the kernel's log, and start again, "
        "without this GPU if it happens again (--devices)",
        index, call, cudaGetErrorString(error), cudaGetErrorName(error));
  }

  Result<void> result(std::string_view call, cudaError_t error) {
    if (told(error) == cudaSuccess) return {};
    return failed(call, error);
  }
};

class CudaRecording final : public GpuRecording {
 public:
  CudaRecording(CudaGpu& gpu, cudaGraphExec_t graph) : gpu_(gpu), graph_(graph) {}
  ~CudaRecording() override {
    if (!gpu_.lost.load(std::memory_order_relaxed)) told(cudaGraphExecDestroy(graph_));
  }
  CudaRecording(const CudaRecording&) = delete;
  CudaRecording& operator=(const CudaRecording&) = delete;

  cudaGraphExec_t graph() const { return graph_; }

 private:
  CudaGpu& gpu_;
  cudaGraphExec_t graph_;
};

class CudaEvent final : public GpuEvent {
 public:
  CudaEvent(CudaGpu& gpu, cudaEvent_t event) : gpu_(gpu), event_(event) {}
  ~CudaEvent() override {
    if (!gpu_.lost.load(std::memory_order_relaxed)) told(cudaEventDestroy(event_));
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  Result<bool> has_come() const override {
    const cudaError_t state = told(cudaEventQuery(event_));
    if (state == cudaSuccess || state == cudaErrorNotReady) return state == cudaSuccess;
    return gpu_.failed("what it was to do before an event", state);
  }

  cudaEvent_t event() const { return event_; }

 private:
  CudaGpu& gpu_;
  cudaEvent_t event_;
};

class CudaStream final : public GpuStream {
 public:
  CudaStream(CudaGpu& gpu, cudaStream_t stream) : gpu_(gpu), stream_(stream) {}
  ~CudaStream() override {
    if (!gpu_.lost.load(std::memory_order_relaxed)) told(cudaStreamDestroy(stream_));
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void* handle() override { return stream_; }

  Result<void> copy(void* to, const void* from, size_t bytes) override {
    if (bytes == 0) return {};
    return gpu_.result("a copy", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
  }

  Result<void> clear(void* to, size_t bytes) override {
    if (bytes == 0) return {};
    const Using gpu(gpu_.index);
    return gpu_.result("clearing memory", cudaMemsetAsync(to, 0, bytes, stream_));
  }

  Result<void> record(GpuEvent& event) override {
    const auto& own = static_cast<const CudaEvent&>(event);
    return gpu_.result("recording an event", cudaEventRecord(own.event(), stream_));
  }

  Result<void> wait_for(const GpuEvent& event) override {
    const auto& awaited = static_cast<const CudaEvent&>(event);
    return gpu_.result("waiting for an event", cudaStreamWaitEvent(stream_, awaited.event(), 0));
  }

  Result<void> begin_recording() override {
    // Captures this thread's calls alone: other threads may call CUDA meanwhile.
    return gpu_.result("beginning a recording",
                       cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  }

  Result<std::unique_ptr<GpuRecording>> end_recording() override;

  Result<void> play(const GpuRecording& recording) override {
    const auto& recorded = static_cast<const CudaRecording&>(recording);
    return gpu_.result("playing a recording", cudaGraphLaunch(recorded.graph(), stream_));
  }

  Result<void> wait(std::chrono::nanoseconds deadline) override {
    return wait_while_busy(deadline, [this] { return cudaStreamQuery(stream_); });
  }
  Result<void> wait_until(const GpuEvent& event, std::chrono::nanoseconds deadline) override {
    const cudaEvent_t awaited = static_cast<const CudaEvent&>(event).event();
    return wait_while_busy(deadline, [awaited] { return cudaEventQuery(awaited); });
  }

 private:
  template <typename Query>
  Result<void> wait_while_busy(std::chrono::nanoseconds deadline, const Query& query);

  CudaGpu& gpu_;
  cudaStream_t stream_;
};

Result<std::unique_ptr<GpuRecording>> CudaStream::end_recording() {
  const Using gpu(gpu_.index);
  cudaGraph_t graph = nullptr;
  if (const cudaError_t ended = told(cudaStreamEndCapture(stream_, &graph)); ended != cudaSuccess) {
    return gpu_.failed("ending a recording", ended);
  }
  cudaGraphExec_t playable = nullptr;
  const cudaError_t made = told(cudaGraphInstantiate(&playable, graph, 0));
  told(cudaGraphDestroy(graph));
  if (made == cudaErrorMemoryAllocation) {
    return machine_refused(
        "gpu{}: no memory is left for recordings of passes; use a smaller --context or --sequences",
        gpu_.index);
  }
  if (made != cudaSuccess) return gpu_.failed("making a recording playable", made);
  auto recording = std::make_unique<CudaRecording>(gpu_, playable);
  // Else the first pass would do it.
  if (const cudaError_t brought = told(cudaGraphUpload(playable, stream_));
      brought != cudaSuccess) {
    return gpu_.failed("bringing a recording to the GPU", brought);
  }
  return recording;
}

// A call that waits by itself would wait for ever for a GPU that does not answer.
template <typename Query>
Result<void> CudaStream::wait_while_busy(std::chrono::nanoseconds deadline, const Query& query) {
  const Clock::time_point begin = Clock::now();
  while (true) {
    const cudaError_t state = told(query());
    if (state == cudaSuccess) return {};
    if (state != cudaErrorNotReady) return gpu_.failed("what it was to do", state);
    const Clock::duration waited = Clock::now() - begin;
    // Once more: this process may have been stopped since it asked.
    if (waited > deadline && told(query()) == cudaErrorNotReady) {
      gpu_.lost.store(true, std::memory_order_relaxed);
      return machine_refused(
          "gpu{}: what it was to do was not done within {} ms: it does not answer; look for Xid "
          "messages in the kernel's log, and start again, without this GPU if it happens again "
          "(--devices)",
          gpu_.index, std::chrono::duration_cast<std::chrono::milliseconds>(deadline).count());
    }
    if (waited < kLooking) continue;
    if (waited < kYielding) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }
}

class CudaDevice final : public GpuDevice {
 public:
  explicit CudaDevice(int index) { gpu_.index = index; }

  int index() const override { return gpu_.index; }
  Result<GpuMemory> allocate(size_t bytes, std::string_view what) override;
  Result<GpuMemory> pin(std::span<std::byte> host) override;
  Result<std::unique_ptr<GpuStream>> make_stream() override;
  Result<std::unique_ptr<GpuEvent>> make_event() override;

  Result<void> reach(int gpu) override;

  Result<void> use() override { return gpu_.result("cudaSetDevice", cudaSetDevice(gpu_.index)); }

  bool is_lost() const override { return gpu_.lost.load(std::memory_order_relaxed); }

 private:
  void give_back(std::span<std::byte> bytes, bool pinned) override;
  std::unexpected<Error> no_memory(size_t bytes, std::string_view what) const;

  CudaGpu gpu_;
};

std::unexpected<Error> CudaDevice::no_memory(size_t bytes, std::string_view what) const {
  size_t free = 0;
  size_t total = 0;
  if (told(cudaMemGetInfo(&free, &total)) != cudaSuccess) free = total = 0;
  return machine_refused(
      "gpu{}: no {} MiB of memory for {}: {} of its {} MiB are free. Use a smaller model, "
      "--context "
      "or --sequences, more GPUs (--devices), or end what else uses this one",
      gpu_.index, bytes >> 20U, what, free >> 20U, total >> 20U);
}

Result<GpuMemory> CudaDevice::allocate(size_t bytes, std::string_view what) {
  if (bytes == 0) return GpuMemory();
  const Using gpu(gpu_.index);
  void* memory = nullptr;
  const cudaError_t error =
      gpu.error() != cudaSuccess ? gpu.error() : told(cudaMalloc(&memory, bytes));
  if (error == cudaErrorMemoryAllocation) return no_memory(bytes, what);
  if (error != cudaSuccess) return gpu_.failed(fmt::format("taking memory for {}", what), error);
  return GpuMemory(*this, {static_cast<std::byte*>(memory), bytes}, false);
}

// Portable: for every GPU of the process.
Result<GpuMemory> CudaDevice::pin(std::span<std::byte> host) {
  const Using gpu(gpu_.index);
  const auto refused = [&](std::string_view reason) {
    return machine_refused("gpu{}: {} MiB of the host's memory cannot be pinned: {}", gpu_.index,
                           host.size() >> 20U, reason);
  };
  if (gpu.error() != cudaSuccess) return refused(cudaGetErrorString(gpu.error()));
  const cudaError_t registered = told(cudaHostRegister(
      host.data(), host.size(), cudaHostRegisterPortable | cudaHostRegisterMapped));
  if (registered != cudaSuccess) return refused(cudaGetErrorString(registered));
  GpuMemory pinned(*this, host, true);
  void* address = nullptr;
  const cudaError_t mapped = told(cudaHostGetDevicePointer(&address, host.data(), 0));
  if (mapped != cudaSuccess) return refused(cudaGetErrorString(mapped));
  if (address != host.data()) return refused("the GPU sees it at another address");
  return pinned;
}

Result<std::unique_ptr<GpuStream>> CudaDevice::make_stream() {
  const Using gpu(gpu_.index);
  cudaStream_t stream = nullptr;
  // Non-blocking: it waits for no stream but itself. One priority: the streams of a GPU do not work
  // at the same time but in a load.
  const cudaError_t error = gpu.error() != cudaSuccess
                                ? gpu.error()
                                : told(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  if (error != cudaSuccess) return gpu_.failed("making a stream", error);
  return std::make_unique<CudaStream>(gpu_, stream);
}

Result<std::unique_ptr<GpuEvent>> CudaDevice::make_event() {
  const Using gpu(gpu_.index);
  cudaEvent_t event = nullptr;
  const cudaError_t error = gpu.error() != cudaSuccess
                                ? gpu.error()
                                : told(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  if (error != cudaSuccess) return gpu_.failed("making an event", error);
  return std::make_unique<CudaEvent>(gpu_, event);
}

Result<void> CudaDevice::reach(int gpu) {
  if (gpu == gpu_.index) return {};
  const auto refused = [&](std::string_view reason) {
    return machine_refused(
        "gpu{} cannot reach the memory of gpu{}: {}; nvidia-smi topo -p2p r "
        "shows which can",
        gpu_.index, gpu, reason);
  };
  const Using own(gpu_.index);
  if (own.error() != cudaSuccess) return gpu_.failed("using it", own.error());
  int can = 0;
  const cudaError_t asked = told(cudaDeviceCanAccessPeer(&can, gpu_.index, gpu));
  if (asked != cudaSuccess) return refused(cudaGetErrorString(asked));
  if (can == 0) return refused("no link between them lets it");
  const cudaError_t enabled = told(cudaDeviceEnablePeerAccess(gpu, 0));
  if (enabled == cudaSuccess || enabled == cudaErrorPeerAccessAlreadyEnabled) return {};
  return refused(cudaGetErrorString(enabled));
}

void CudaDevice::give_back(std::span<std::byte> bytes, bool pinned) {
  if (gpu_.lost.load(std::memory_order_relaxed)) return;
  const Using gpu(gpu_.index);
  told(pinned ? cudaHostUnregister(bytes.data()) : cudaFree(bytes.data()));
}

}  // namespace

Result<std::unique_ptr<GpuDevice>> open_cuda_device(int gpu) {
  // Makes its context, which a GPU that others have to themselves refuses.
  if (const cudaError_t opened = told(cudaSetDevice(gpu)); opened != cudaSuccess) {
    return machine_refused("gpu{} cannot be used: {} ({}); name GPUs that nvidia-smi lists", gpu,
                           cudaGetErrorString(opened), cudaGetErrorName(opened));
  }
  return std::make_unique<CudaDevice>(gpu);
}

}  // namespace lockstep
