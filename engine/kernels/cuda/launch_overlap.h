// How launches that follow one another on a stream overlap (programmatic dependent launch, compute
// capability 9.0 and later): blocks of the next one begin while those of this one end, so that
// neither the drain nor the start leaves the memory idle. Included by gpu_code.h alone; in an
// anonymous namespace, as what is there.
//
// What CUDA promises (PTX ISA, griddepcontrol; CUDA Programming Guide, "Programmatic Dependent
// Launch and Synchronization"; driver_types.h, cudaLaunchAttributeProgrammaticStreamSerialization
// and cudaGraphDependencyTypeProgrammatic):
//   - A launch with the attribute may begin when every block of the kernel before it on the stream
//     has called griddepcontrol.launch_dependents or has ended, and need not. A block of which no
//     thread calls it counts when it ends. What the kernel has written is not seen by then: neither
//     by a call nor by an end.
//   - griddepcontrol.wait returns when the launch before is complete and what it has written is
//     seen. It is about the thread that calls it, and about that one launch.
//   - Without the attribute, and after what is no kernel (a copy, a launched graph), a launch
//     begins when everything before it on the stream is complete, and its wait returns at once.
//     What is no kernel begins likewise. In a recording the attribute becomes an edge between two
//     kernels; any other edge is an ordinary one.
//
// What follows for kernels:
//   - Every thread of every kernel that launch() launches calls wait_for_launches() (by itself, or
//     in follow_launches()) before it ends and before it reads or writes anything that another
//     launch may write or read. So a launch is never complete before the one before it, and having
//     waited for one is having waited for all: also for a copy that comes next, and through kernels
//     of libraries between ours, which are launched without the attribute or wait themselves. What
//     holds behind a thread that ends without waiting, NVIDIA does not say. (NCCL's kernels for
//     windows that are registered with it, which nothing here is, have the attribute and do not
//     wait, from 2.28 to 2.30.4.)
//   - Before it a thread may ask for weights, which no launch writes: they were packed on other
//     streams, and the host has waited for those. Likewise for the pass's batch: the host's copy of
//     it comes before the pass's first launch, which so begins when it is done, and all others
//     begin behind that one; and for keys and values that earlier passes have written, where the
//     pass's own launches write none of them (gpu_attention.h).
//   - The next launch is let in after the wait, so at most two are under way.
//
// Why no block waits for a place that another takes: the next launch's blocks begin when all blocks
// of this one are running or done, and those wait for nothing any more. They end, whatever the next
// one's blocks do; then these go on, and none of them waits for another that has not begun. With
// kernels that wait for another GPU's it would be different: several ranks may share a GPU, and
// blocks of one's next launch could wait in the places that the other's need. Those kernels do not
// let the next launch in (wait_for_launches() alone): it begins when all their blocks have ended.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "engine/kernels/gpu_launches.h"

namespace lockstep {
namespace {

// The instructions are there from 9.0 on: device code for less waits for nothing, which is right
// where launches do not overlap. launches_overlap() looks at what was compiled, not at the GPU.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void grid_dependency_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void grid_dependents_launch() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#else
__device__ __forceinline__ void grid_dependency_wait() {}
__device__ __forceinline__ void grid_dependents_launch() {}
#endif

// Whether launches overlap on the thread's GPU: where they may, and the code that runs there was
// compiled for 9.0 or later. Code for an older one that the driver has translated does not wait.
// Asked of one kernel per GPU and .cu file, whose kernels are all compiled for the same
// architectures.
inline bool launches_overlap(const void* kernel) {
  enum Answer : unsigned char { kUnknown, kNo, kYes };
  constexpr int kGpus = 64;
  static std::atomic<Answer> answers[kGpus] = {};
  int gpu = 0;
  if (!launches_may_overlap() || cudaGetDevice(&gpu) != cudaSuccess) return false;
  if (gpu < 0 || gpu >= kGpus) return false;
  // Threads that ask at the same time get the same answer.
  Answer answer = answers[gpu].load(std::memory_order_relaxed);
  if (answer == kUnknown) {
    cudaFuncAttributes attributes = {};
    if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) {
      cudaGetLastError();  // the launch will tell
      return false;
    }
    answer = attributes.ptxVersion >= 90 ? kYes : kNo;
    answers[gpu].store(answer, std::memory_order_relaxed);
  }
  return answer == kYes;
}

}  // namespace
}  // namespace lockstep
