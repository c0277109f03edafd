// Kernels are on the GPU before any of them runs.
#include <gtest/gtest.h>

#include "engine/kernels/gpu_kernel_load.h"

namespace lockstep {
namespace {

constexpr size_t kFiles = 7;  // of kernels, each with several

TEST(CudaKernelLoad, all_of_them_are_loaded_once) {
  const auto first = load_cuda_kernels();
  ASSERT_TRUE(first.has_value()) << first.error().message;
  EXPECT_GT(first->kernel_count, 2 * kFiles);
  const auto second = load_cuda_kernels();
  ASSERT_TRUE(second.has_value()) << second.error().message;
  EXPECT_EQ(second->kernel_count, first->kernel_count);
  EXPECT_EQ(second->loaded_count, 0U);
}

}  // namespace
}  // namespace lockstep
