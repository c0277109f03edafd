// A build with CUDA needs none of NVIDIA's libraries to start; where they are, what is called of
// them is there. Needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "engine/collectives/nccl.h"
#include "engine/kernels/cuda/cublas_lt.h"
#include "engine/machine/gpu.h"
#include "engine/runtime/gpu/gpu_platform.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string mapped_files() {
  std::ifstream maps("/proc/self/maps");
  return {std::istreambuf_iterator<char>(maps), {}};
}

// First: the others load them.
TEST(CudaLibraries, a_program_is_linked_with_none_of_them) {
  const GpuPlatform* const platform = cuda_platform();
  ASSERT_NE(platform, nullptr);
  EXPECT_THAT(mapped_files(), HasSubstr("/libc.so"));
  for (const std::string name : {"libcublas", "libnccl", "libcuda.", "libcudart"}) {
    EXPECT_THAT(mapped_files(), Not(HasSubstr(name)));
  }
}

TEST(CudaLibraries, one_that_is_missing_is_named_with_the_remedy) {
  const auto nowhere = load_cublas_lt({"libnowhere.so.13", "/nowhere/libnowhere.so.13"});
  ASSERT_FALSE(nowhere.has_value());
  EXPECT_EQ(nowhere.error().kind, ErrorKind::kMachineRefused);
  const std::string& message = nowhere.error().message;
  EXPECT_THAT(message, StartsWith("cuBLASLt, which computes prompts on GPUs, cannot be loaded: "
                                  "libnowhere.so.13: cannot open shared object file"));
  EXPECT_THAT(message, HasSubstr("LD_LIBRARY_PATH"));
  EXPECT_THAT(message, HasSubstr("--devices cpu"));
}

TEST(CudaLibraries, one_without_a_function_is_refused) {
  const auto other = load_cublas_lt({"/nowhere/libm.so", "libm.so.6"});
  ASSERT_FALSE(other.has_value());
  EXPECT_THAT(other.error().message, HasSubstr("has no cublasLtCreate"));
}

TEST(CudaLibraries, the_toolkits_has_all_that_is_called) {
  const auto calls = find_cublas_lt();
  if (!calls) GTEST_SKIP() << "this machine lacks cuBLASLt: " << calls.error().message;
  EXPECT_GE((*calls)->version(), 130000U);
  EXPECT_TRUE(find_cuda_matrix_library().has_value());
}

// One that is there has all that is called, or else it is said what it lacks.
TEST(CudaLibraries, nccl_is_there_or_is_not) {
  const std::string absence = nccl_absence();
  if (absence.empty()) {
    EXPECT_THAT(mapped_files(), HasSubstr("libnccl.so"));
  } else {
    EXPECT_THAT(absence, ::testing::AnyOf(StartsWith("without NCCL (libnccl.so.2: cannot open"),
                                          StartsWith("in a build without NCCL")));
  }
}

// Before CUDA is asked for anything.
TEST(CudaLibraries, two_ranks_on_one_gpu_are_refused_by_the_version_that_is_loaded) {
  const std::string alone = no_shared_gpus();
  if (alone.empty() || !nccl_absence().empty()) GTEST_SKIP() << "this machine lacks an old NCCL";
  EXPECT_THAT(alone, HasSubstr("2.30 is the first"));
  const int gpus[] = {0, 1, 0};
  const auto refused = NcclRanks::create(gpus, std::chrono::seconds(1));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::kMachineRefused);
  EXPECT_EQ(refused.error().message, "GPUs 0, 1, 0 are to be joined: " + alone);
}

}  // namespace
}  // namespace lockstep
