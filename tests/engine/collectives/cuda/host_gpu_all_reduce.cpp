// gpu_all_reduce.h with its kernels played by the host.
#include "tests/engine/kernels/cuda/gpu_code.h"

// Written in the words of the file above.
#include "engine/collectives/cuda/all_reduce.inl.h"

namespace lockstep {

void gpu_all_reduce(void* stream, const GpuAllReduce& sum, const GpuPeers& peers) {
  enqueue_all_reduce(stream, sum, peers);
}

void gpu_meet(void* stream, const GpuPeers& peers) {
  enqueue_meeting(stream, peers);
}

}  // namespace lockstep
