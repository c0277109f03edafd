// Kernels that do what they should not, or wait for one another, to test the emulated GPUs with.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lockstep::ptx {

// to[i] = value + i of all threads; `threads` of them.
void launch_count(cudaStream_t stream, uint32_t* to, uint32_t value, unsigned threads);
// to[0] = four words at `from`, read at once, xor-ed.
void launch_read_four(cudaStream_t stream, uint32_t* to, const uint32_t* from);
// Sets `own`, and waits until `other` is set; then to[0] = 1. So two of them end only if they run
// at the same time.
void launch_meet(cudaStream_t stream, uint32_t* own, const uint32_t* other, uint32_t* to);
// The first lets the next begin, waits until it has, and then sets value[0] to 1. The next, which
// may begin early, notes value[0] in seen[0] before it waits for the first, and in seen[1] after.
void launch_early_pair(cudaStream_t stream, uint32_t* value, uint32_t* begun, uint32_t* seen);
// As many bytes of shared memory, with CUDA's leave or without it.
cudaError_t launch_with_shared(cudaStream_t stream, uint32_t* to, unsigned bytes, bool ask);
// A kernel of 64 threads at most.
cudaError_t launch_bounded(cudaStream_t stream, uint32_t* to, unsigned threads);
cudaError_t launch_rows(cudaStream_t stream, uint32_t* to, unsigned rows);

}  // namespace lockstep::ptx
