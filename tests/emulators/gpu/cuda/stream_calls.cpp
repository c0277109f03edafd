// The emulated CUDA runtime: streams and recordings of them.
#include <algorithm>
#include <utility>

#include "tests/emulators/gpu/cuda/runtime.h"

using namespace lockstep::ptx;

namespace {

// An empty step before and after the steps of a recording: the recording begins when all before it
// is done, and nothing after it begins before it is done.
StepPointer boundary() {
  static const StepPointer step = [] {
    Step nothing;
    nothing.task = [] { return std::string(); };
    return std::make_shared<const Step>(std::move(nothing));
  }();
  return step;
}

}  // namespace

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  if (const cudaError_t state = state_of_current(); state != cudaSuccess) return told(state);
  if (flags != cudaStreamNonBlocking) {
    return told(cudaErrorInvalidValue, "cudaStreamCreateWithFlags: only non-blocking ones");
  }
  Gpu& gpu = Machine::get().gpu(current_gpu());
  *stream = new CUstream_st{gpu, gpu.make_stream(), std::nullopt};
  return cudaSuccess;
}

// The steps on the stream are still run.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (stream == nullptr) return told(cudaErrorInvalidResourceHandle);
  if (stream->capture) end_capture(*stream);
  stream->gpu.destroy(stream->stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  CUstream_st& stream = stream_of(handle);
  if (const cudaError_t failed = failure_of(stream.gpu); failed != cudaSuccess) return told(failed);
  if (stream.capture) {
    stream.capture->is_broken = true;
    return told(cudaErrorStreamCaptureUnsupported);
  }
  const bool done = stream.gpu.is_done(*stream.stream);
  // It may have been done by failing meanwhile.
  if (const cudaError_t failed = failure_of(stream.gpu); failed != cudaSuccess) return told(failed);
  return done ? cudaSuccess : told(cudaErrorNotReady);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  if (const cudaError_t state = state_of_current(); state != cudaSuccess) return told(state);
  if (flags != cudaEventDisableTiming) {
    return told(cudaErrorInvalidValue, "cudaEventCreateWithFlags: only without timing");
  }
  *event = new CUevent_st{current_gpu()};
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event == nullptr) return told(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Gpu& gpu = Machine::get().gpu(event->gpu);
  if (const cudaError_t failed = failure_of(gpu); failed != cudaSuccess) return told(failed);
  const bool has_come = event->rounds->come.load() == event->rounds->recorded.load();
  return has_come ? cudaSuccess : told(cudaErrorNotReady);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  CUstream_st& stream = stream_of(handle);
  if (event->gpu != stream.gpu.index()) {
    return told(cudaErrorInvalidResourceHandle, "cudaEventRecord: an event of another GPU");
  }
  if (stream.capture) {
    return told(cudaErrorInvalidValue, "cudaEventRecord: events in recordings are not emulated");
  }
  Step step;
  step.task = [rounds = event->rounds, round = ++event->rounds->recorded] {
    rounds->come.store(round);
    return std::string();
  };
  return enqueue(stream, std::move(step));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned int flags) {
  CUstream_st& stream = stream_of(handle);
  if (event == nullptr || flags != 0) return told(cudaErrorInvalidValue);
  if (stream.capture) {
    return told(cudaErrorInvalidValue, "cudaStreamWaitEvent: not emulated in recordings");
  }
  Step step;
  step.has_come = [rounds = event->rounds, round = event->rounds->recorded.load()] {
    return rounds->come.load() >= round;
  };
  step.task = [] { return std::string(); };
  return enqueue(stream, std::move(step));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr) return told(cudaErrorStreamCaptureUnsupported);
  if (const cudaError_t failed = failure_of(stream->gpu); failed != cudaSuccess) {
    return told(failed);
  }
  if (stream->capture) return told(cudaErrorInvalidValue);
  begin_capture(*stream, mode);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (stream == nullptr || !stream->capture) return told(cudaErrorInvalidValue);
  if (stream->capture->mode != cudaStreamCaptureModeRelaxed &&
      stream->capture->thread != std::this_thread::get_id()) {
    stream->capture->is_broken = true;
    return told(cudaErrorStreamCaptureWrongThread);
  }
  Capture capture = end_capture(*stream);
  if (capture.is_broken) return told(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{std::move(capture.steps)};
  return cudaSuccess;
}

cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to,
                              cudaGraphEdgeData* edges, size_t* count) {
  const size_t present = graph->steps.empty() ? 0 : graph->steps.size() - 1;
  if (from == nullptr || to == nullptr) {
    *count = present;
    return cudaSuccess;
  }
  const size_t asked = std::exchange(*count, std::min(*count, present));
  for (size_t edge = 0; edge < std::min(asked, present); ++edge) {
    const Step& before = *graph->steps[edge];
    const Step& after = *graph->steps[edge + 1];
    from[edge] = reinterpret_cast<cudaGraphNode_t>(edge + 1);
    to[edge] = reinterpret_cast<cudaGraphNode_t>(edge + 2);
    const bool early = after.begins_early && before.is_kernel();
    // CUDA refuses to leave out what is not the default.
    if (edges == nullptr && early) return told(cudaErrorLossyQuery);
    if (edges == nullptr) continue;
    edges[edge] = {};
    if (!early) continue;
    edges[edge].type = cudaGraphDependencyTypeProgrammatic;
    edges[edge].from_port = cudaGraphKernelNodePortProgrammatic;
  }
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags) {
  if (const cudaError_t state = state_of_current(); state != cudaSuccess) return told(state);
  if (graph == nullptr || flags != 0) return told(cudaErrorInvalidValue);
  *executable = new CUgraphExec_st{current_gpu(), graph->steps};
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (graph == nullptr) return told(cudaErrorInvalidValue);
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  if (executable == nullptr) return told(cudaErrorInvalidValue);
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  if (executable == nullptr || stream_of(stream).capture) return told(cudaErrorInvalidValue);
  if (executable->gpu != stream_of(stream).gpu.index()) {
    return told(cudaErrorInvalidValue, "cudaGraphUpload: made executable for another GPU");
  }
  return told(failure_of(stream_of(stream).gpu));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  CUstream_st& stream = stream_of(handle);
  if (executable == nullptr || stream.capture) return told(cudaErrorInvalidValue);
  if (executable->gpu != stream.gpu.index()) {
    return told(cudaErrorInvalidValue, "cudaGraphLaunch: made executable for another GPU");
  }
  if (const cudaError_t failed = failure_of(stream.gpu); failed != cudaSuccess) return told(failed);
  std::vector<StepPointer> steps = {boundary()};
  steps.insert(steps.end(), executable->steps.begin(), executable->steps.end());
  steps.push_back(boundary());
  stream.gpu.enqueue(*stream.stream, steps);
  return cudaSuccess;
}
