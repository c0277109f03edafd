// The emulated machine of a process: its GPUs, what their memory holds, and how its environment
// describes it. Begins when CUDA is first asked for anything, and stays.
//
//   EMULATED_GPUS        how many (1)
//   EMULATED_MEMORY_MIB  the memory of each (2048)
//   EMULATED_SEED        of the order of everything that CUDA leaves open (0)
//   EMULATED_DELAY_US    what is enqueued waits for up to so long before it begins (0)
//   EMULATED_FAILING_LAUNCH, EMULATED_HANGING_LAUNCH  which launch of the last GPU fails, or is the
//                        first that never ends, counted from 1 (none)
//   EMULATED_REFUSES_UNWRITTEN=1  kernels fail that read shared memory which nobody has written;
//                        else it holds anything, numbers and none
//   EMULATED_REFUSES_RACES  whether kernels fail whose warps touch the same shared memory without a
//                        barrier between, one of them writing, whatever the order they come in (1)
//   EMULATED_CUBLAS_LT   the file of cuBLASLt; where it cannot be loaded there is none (no file)
//   CUDA_LAUNCH_BLOCKING=1  a launch returns when its kernel is done
#pragma once

#include <cstddef>
#include <vector>

#include "tests/emulators/gpu/cuda/allocations.h"
#include "tests/emulators/gpu/cuda/gpu.h"

namespace lockstep::ptx {

class Machine {
 public:
  static Machine& get();

  int gpu_count() const { return static_cast<int>(gpus_.size()); }
  bool has(int gpu) const { return gpu >= 0 && gpu < gpu_count(); }
  Gpu& gpu(int index) { return *gpus_[static_cast<size_t>(index)]; }
  Allocations& allocations() { return allocations_; }
  bool launches_block() const { return launches_block_; }
  bool refuses_unwritten() const { return refuses_unwritten_; }
  bool refuses_races() const { return refuses_races_; }

 private:
  Machine();

  Allocations allocations_;
  std::vector<Gpu*> gpus_;
  bool launches_block_;
  bool refuses_unwritten_;
  bool refuses_races_;
};

}  // namespace lockstep::ptx
