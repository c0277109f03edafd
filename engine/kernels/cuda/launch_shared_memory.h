// Shared memory of launches. Included by gpu_code.h alone; in an anonymous namespace, as what is
// there.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstddef>

#include "engine/base/mutex.h"

namespace lockstep {
namespace {

// The shared memory of a block that a kernel has without asking for it (CUDA Programming Guide,
// "Compute Capabilities").
constexpr size_t kSharedWithoutAsking = 48 * 1024;

// The shared memory that kernels may have, by GPU. CUDA is asked once: asking can wait for copies
// that are under way, and so would every launch of a prompt's passes. Any thread may call.
class SharedMemoryGrants {
 public:
  // On the thread's GPU. An error is CUDA's.
  cudaError_t ask(const void* kernel, size_t bytes) {
    if (bytes <= kSharedWithoutAsking) return cudaSuccess;
    const int wanted = static_cast<int>(bytes);
    int gpu = 0;
    if (const cudaError_t error = cudaGetDevice(&gpu); error != cudaSuccess) return error;
    std::atomic<int>* const granted = grant_of(kernel, gpu);
    if (granted == nullptr) return set(kernel, wanted);
    if (granted->load(std::memory_order_acquire) >= wanted) return cudaSuccess;
    // The lock is of this GPU alone: on another, a launch may wait for what this thread has yet to
    // launch.
    const MutexLock lock(asking_[static_cast<size_t>(gpu)]);
    if (granted->load(std::memory_order_relaxed) >= wanted) return cudaSuccess;
    const cudaError_t error = set(kernel, wanted);
    if (error == cudaSuccess) granted->store(wanted, std::memory_order_release);
    return error;
  }

 private:
  static constexpr size_t kKernels = 128;  // more than a .cu file has
  static constexpr int kGpus = 64;

  static cudaError_t set(const void* kernel, int bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  }

  // Null: there is no place for it.
  std::atomic<int>* grant_of(const void* kernel, int gpu) {
    if (gpu < 0 || gpu >= kGpus) return nullptr;
    for (size_t place = 0; place < kKernels; ++place) {
      const void* known = kernels_[place].load(std::memory_order_acquire);
      if (known == nullptr && kernels_[place].compare_exchange_strong(known, kernel)) {
        known = kernel;
      }
      if (known == kernel) return &bytes_[place][static_cast<size_t>(gpu)];
    }
    return nullptr;
  }

  std::array<Mutex, kGpus> asking_;  // each is held while CUDA is asked; they guard no member
  std::array<std::atomic<const void*>, kKernels> kernels_ = {};
  std::array<std::array<std::atomic<int>, kGpus>, kKernels> bytes_ = {};
};

// The grants of the .cu file's kernels.
inline SharedMemoryGrants& shared_memory_grants() {
  static SharedMemoryGrants grants;
  return grants;
}

// How a multiprocessor's memory is divided between shared memory and the first cache: all our
// kernels ask for the most, so that it is divided once. Blocks of a launch that wants another
// division would have to wait until the multiprocessor is empty, or have places for fewer. A hint;
// not measured.
inline cudaLaunchAttribute most_shared_memory() {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attribute.val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  return attribute;
}

}  // namespace
}  // namespace lockstep
