// The parts that all calls of the emulated CUDA runtime (*_calls.cpp) share: errors, the thread's
// GPU, and the objects behind handles. CUDA's documentation ("CUDA Runtime API") says which call
// fails with which error. Where a real GPU would go on with something that gpu_device.h rules out,
// the call fails here, and says on stderr why.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/emulators/gpu/cuda/machine.h"
#include "tests/emulators/gpu/cuda/step.h"

namespace lockstep::ptx {

// A recording that is being made: its stream adds steps to it instead of running them.
struct Capture {
  std::vector<StepPointer> steps;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool is_broken = false;  // by a call that it does not allow
};

}  // namespace lockstep::ptx

struct CUstream_st {
  lockstep::ptx::Gpu& gpu;
  lockstep::ptx::Gpu::Stream* stream;
  std::optional<lockstep::ptx::Capture> capture;
};

// How often it was recorded, and the last of these that has come: steps that are enqueued know
// both.
struct CUevent_st {
  struct Rounds {
    std::atomic<uint64_t> recorded = 0;
    std::atomic<uint64_t> come = 0;
  };
  int gpu;
  std::shared_ptr<Rounds> rounds = std::make_shared<Rounds>();
};

// A recording is a row of steps: it has one stream. Its nodes are known by their places in it.
struct CUgraph_st {
  std::vector<lockstep::ptx::StepPointer> steps;
};

struct CUgraphExec_st {
  int gpu;
  std::vector<lockstep::ptx::StepPointer> steps;
};

namespace lockstep::ptx {

// Keeps it as the thread's last error, as every call does with what it returns.
cudaError_t told(cudaError_t error);
template <typename... Arguments>
cudaError_t told(cudaError_t error, fmt::format_string<Arguments...> words,
                 Arguments&&... arguments) {
  fmt::print(stderr, "emulated CUDA: {}\n",
             fmt::format(words, std::forward<Arguments>(arguments)...));
  return told(error);
}

// The calling thread's GPU and last error.
int current_gpu();
void set_current_gpu(int gpu);
cudaError_t take_last_error();

// The error that every call on the GPU returns once a kernel has failed there.
cudaError_t failure_of(const Gpu& gpu);
// The same for the thread's GPU. cudaErrorNoDevice: there is none.
cudaError_t state_of_current();

// Null is the default stream of the thread's GPU.
CUstream_st& stream_of(cudaStream_t stream);

void begin_capture(CUstream_st& stream, cudaStreamCaptureMode mode);
Capture end_capture(CUstream_st& stream);
// For calls that must not come while something is recorded: breaks the recordings that forbid it to
// this thread. cudaSuccess: there are none.
cudaError_t refuse_in_captures(const char* call);

// Enqueues, or records.
cudaError_t enqueue(CUstream_st& stream, Step step);

}  // namespace lockstep::ptx
