#include <atomic>

#include "engine/kernels/gpu_kernels.h"
#include "engine/kernels/gpu_launches.h"

namespace lockstep {
namespace {

std::atomic<bool> may_overlap = true;

}  // namespace

bool launches_may_overlap() {
  return may_overlap.load(std::memory_order_relaxed);
}

void let_launches_overlap(bool wanted) {
  may_overlap.store(wanted, std::memory_order_relaxed);
}

const GpuKernels& cuda_kernels() {
  static constexpr GpuKernels kKernels = linked_gpu_kernels("cuda");
  return kKernels;
}

}  // namespace lockstep
