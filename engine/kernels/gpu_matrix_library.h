// Products of plain matrices on a GPU by a library of its maker. NVIDIA's is cuBLASLt; tests have
// loops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/base/result.h"

namespace lockstep {

// sums[t][r] = the sum over the columns c of inputs[t][c] * weights[r][c], bf16 times bf16, added
// in f32; then + what sums[t][r] held, if it is to accumulate. All pointers are the device's.
struct GpuMatrixProduct {
  const uint16_t* weights = nullptr;  // [row][column], 256-byte aligned
  size_t rows = 0;                    // a multiple of 32, as the columns are
  size_t columns = 0;
  const uint16_t* inputs = nullptr;  // [token], 16-byte aligned
  size_t input_stride = 0;           // elements from token to token, a multiple of 8
  size_t tokens = 0;
  float* sums = nullptr;  // [token], 16-byte aligned
  size_t sum_stride = 0;  // floats from token to token, a multiple of 4
  bool accumulate = false;
};

// One per stream, used by one thread at a time.
//
// A shape (rows, columns, strides of inputs and sums) has one kernel, whether it accumulates or
// not, chosen when it is prepared: one that cuts no sum, and computes any number of tokens, or
// whole steps of them: then the last ones are computed in the library's memory, beside others that
// are not read. It is the same for all numbers, so a token's bits depend neither on how many there
// are nor on which of them it is; two kernels for a shape, one for few tokens, would make them
// depend on the neighbours. Of NVIDIA's library that is how its kernels are built, but nothing that
// it promises: tests/engine/runtime/gpu_matrix_library_test.cpp compares.
class GpuMatrixLibrary {
 public:
  virtual ~GpuMatrixLibrary() = default;

  // Before the first product of the shape: chooses the kernel that is fastest for the product's
  // number of tokens (the most that there may be) and computes fewer as well, and enqueues the
  // product, of one token and of all, so that the kernel is on the GPU from now on. Does nothing
  // for a shape that is prepared. Fails with kMachineRefused, and names the shape, where the
  // library has no such kernel.
  virtual Result<void> prepare(void* stream, const GpuMatrixProduct& product) = 0;

  // Enqueues it. Allocates nothing. A product that is refused is missing; state() tells.
  virtual void multiply(void* stream, const GpuMatrixProduct& product) = 0;

  // The first failure of a product, for good.
  virtual Result<void> state() const = 0;

  // The GPU is lost: nothing is asked of it any more, nor is the library closed, which would wait
  // for it. What it holds ends with the process.
  virtual void abandon() = 0;
};

// The bytes of the GPU's memory that a library may use: as much as NVIDIA advises for its newer
// GPUs.
inline constexpr size_t kGpuLibraryBytes = size_t{32} << 20U;

// Whether that of NVIDIA's GPUs is on this machine; loads it. Fails with kMachineRefused: the
// library and the remedy. In builds with CUDA alone.
Result<void> find_cuda_matrix_library();

// Opens the library of the GPU that is the calling thread's (GpuDevice::use); `gpu` is its number
// in messages. `workspace` is 256-byte aligned memory of it, which must outlive the library. Fails
// with kMachineRefused. In builds with CUDA alone.
Result<std::unique_ptr<GpuMatrixLibrary>> open_cuda_matrix_library(int gpu,
                                                                   std::span<std::byte> workspace);

}  // namespace lockstep
