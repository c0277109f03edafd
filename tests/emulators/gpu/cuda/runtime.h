// What the emulated CUDA runtime's calls (*_calls.cpp) have in common: errors, the thread's GPU,
// and what is behind the handles. Which call fails with what, CUDA's documentation says ("CUDA
// Runtime API"); where a real GPU would go on with something that gpu_device.h rules out, the call
// fails here, and says on stderr why.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/emulators/gpu/cuda/machine.h"
#include "tests/emulators/gpu/cuda/step.h"

namespace lockstep::ptx {

// What a stream records in place of running it.
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

// Of the thread.
int current_gpu();
void set_current_gpu(int gpu);
cudaError_t take_last_error();

// What every call on the GPU says once a kernel has failed there.
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
