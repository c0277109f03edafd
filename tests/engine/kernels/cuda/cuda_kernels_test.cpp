// Runs the tests of kernels with CUDA's own, on the machine's first GPU. In builds with CUDA alone;
// where there is no GPU, they are skipped and say so.
//
// Tests give kernels what they have allocated and read it when the function that launches has
// returned, as on the host. So here the heap is the GPU's as well (cuda_test_memory.h), and every
// launch waits for its kernel.
#include <cuda_runtime.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <string>

#include "engine/machine/gpu.h"
#include "tests/engine/kernels/cuda/cuda_test_memory.h"

namespace lockstep {
namespace {

// A kernel's failure is that of the test which launched it, though nothing else is told of it: what
// launches leaves it to the one that waits for the stream.
class KernelErrors : public testing::EmptyTestEventListener {
 public:
  void OnTestEnd(const testing::TestInfo& test) override {
    cudaError_t error = cudaDeviceSynchronize();
    if (error == cudaSuccess) error = cudaGetLastError();
    if (error == cudaSuccess) return;
    const std::string name = fmt::format("{}.{}", test.test_suite_name(), test.name());
    ADD_FAILURE() << name << ": " << cudaGetErrorString(error);
    cudaGetLastError();
    if (cudaDeviceSynchronize() == cudaSuccess) return;
    // Nothing more will run on this GPU, and its memory may be gone.
    std::printf("[  FAILED  ] %s, and the GPU with it\n", name.c_str());
    std::fflush(stdout);
    std::_Exit(EXIT_FAILURE);
  }
};

// Why there is no GPU to run on; empty: there is, and it is in use.
std::string use_first_gpu() {
  const GpuReading reading = read_gpus();
  if (reading.gpus.empty()) return reading.absence;
  const Gpu& gpu = reading.gpus.front();
  const cudaError_t error = cudaSetDevice(gpu.index);
  if (error != cudaSuccess) return fmt::format("{}: {}", gpu.name, cudaGetErrorString(error));
  if (!open_gpu_heap()) return gpu.name + " and the host cannot use the same memory at once";
  fmt::print("on gpu{}: {}, compute capability {}.{}\n", gpu.index, gpu.name, gpu.capability_major,
             gpu.capability_minor);
  return {};
}

int run_tests() {
  if (!testing::GTEST_FLAG(list_tests)) {
    const std::string absence = use_first_gpu();
    if (!absence.empty()) {
      fmt::print("[  SKIPPED ] no GPU: {}\n", absence);
      return EXIT_SUCCESS;
    }
    testing::UnitTest::GetInstance()->listeners().Append(new KernelErrors);
  }
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  // CUDA reads it when it is first asked for anything, which is in use_first_gpu().
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  testing::InitGoogleTest(&count, arguments);
  const int result = lockstep::run_tests();
  std::fflush(stdout);
  // No destructors: CUDA gives its memory back before the last of them.
  std::_Exit(result);
}
