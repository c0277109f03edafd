#include "tests/emulators/gpu/cuda/runtime.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace lockstep::ptx {
namespace {

thread_local int thread_gpu = 0;
thread_local cudaError_t last_error = cudaSuccess;

// All streams, so that those which this thread records are found.
struct Captures {
  std::mutex mutex;
  std::vector<CUstream_st*> streams;
};

Captures& captures() {
  static Captures& all = *new Captures;
  return all;
}

}  // namespace

cudaError_t told(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

int current_gpu() {
  return thread_gpu;
}

void set_current_gpu(int gpu) {
  thread_gpu = gpu;
}

cudaError_t take_last_error() {
  return std::exchange(last_error, cudaSuccess);
}

cudaError_t failure_of(const Gpu& gpu) {
  switch (gpu.failure()) {
    case Gpu::Failure::kNone:
      return cudaSuccess;
    case Gpu::Failure::kIllegalAddress:
      return cudaErrorIllegalAddress;
    case Gpu::Failure::kMisalignedAddress:
      return cudaErrorMisalignedAddress;
    case Gpu::Failure::kLaunch:
      break;
  }
  return cudaErrorLaunchFailure;
}

cudaError_t state_of_current() {
  Machine& machine = Machine::get();
  if (!machine.has(thread_gpu)) return cudaErrorNoDevice;
  return failure_of(machine.gpu(thread_gpu));
}

CUstream_st& stream_of(cudaStream_t stream) {
  if (stream != nullptr) return *stream;
  static std::mutex mutex;
  static std::map<int, CUstream_st*>& defaults = *new std::map<int, CUstream_st*>;
  const std::lock_guard lock(mutex);
  CUstream_st*& of_gpu = defaults[thread_gpu];
  if (of_gpu == nullptr) {
    Gpu& gpu = Machine::get().gpu(thread_gpu);
    of_gpu = new CUstream_st{gpu, gpu.make_stream(), std::nullopt};
  }
  return *of_gpu;
}

void begin_capture(CUstream_st& stream, cudaStreamCaptureMode mode) {
  stream.capture.emplace();
  stream.capture->mode = mode;
  stream.capture->thread = std::this_thread::get_id();
  const std::lock_guard lock(captures().mutex);
  captures().streams.push_back(&stream);
}

Capture end_capture(CUstream_st& stream) {
  const std::lock_guard lock(captures().mutex);
  std::erase(captures().streams, &stream);
  Capture capture = std::move(*stream.capture);
  stream.capture.reset();
  return capture;
}

cudaError_t refuse_in_captures(const char* call) {
  const std::lock_guard lock(captures().mutex);
  bool any = false;
  for (CUstream_st* const stream : captures().streams) {
    Capture& capture = *stream->capture;
    if (capture.mode == cudaStreamCaptureModeRelaxed) continue;
    if (capture.mode == cudaStreamCaptureModeThreadLocal &&
        capture.thread != std::this_thread::get_id()) {
      continue;
    }
    capture.is_broken = true;
    any = true;
  }
  if (!any) return cudaSuccess;
  return told(cudaErrorStreamCaptureUnsupported, "{} while a stream is recorded", call);
}

cudaError_t enqueue(CUstream_st& stream, Step step) {
  if (const cudaError_t failed = failure_of(stream.gpu); failed != cudaSuccess) return told(failed);
  auto shared = std::make_shared<const Step>(std::move(step));
  if (stream.capture) {
    if (stream.capture->is_broken) return told(cudaErrorStreamCaptureInvalidated);
    stream.capture->steps.push_back(std::move(shared));
    return cudaSuccess;
  }
  const bool waits = shared->is_kernel() && Machine::get().launches_block();
  stream.gpu.enqueue(*stream.stream, {std::move(shared)});
  if (waits) stream.gpu.wait(*stream.stream);
  return waits ? told(failure_of(stream.gpu)) : cudaSuccess;
}

}  // namespace lockstep::ptx
