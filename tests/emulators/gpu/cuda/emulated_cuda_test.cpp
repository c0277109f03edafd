// The emulated GPUs: what CUDA promises they do, and what CUDA leaves undefined they refuse.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "tests/emulators/gpu/cuda/test_kernels.h"

namespace lockstep::ptx {
namespace {

using testing::HasSubstr;

constexpr char kGpus[] = "16";
constexpr int kOther = 15;  // no test's own
constexpr size_t kWords = 1024;

// Each test has a GPU of its own: after a kernel has failed nothing runs there any more.
class EmulatedCuda : public testing::Test {
 protected:
  EmulatedCuda() {
    static const int simulated = setenv("EMULATED_GPUS", kGpus, 1);
    static int next_gpu = simulated;
    gpu_ = next_gpu++;
    EXPECT_EQ(cudaSetDevice(gpu_), cudaSuccess);
    stream_ = make_stream();
    words_ = allocate();
    EXPECT_EQ(
        cudaHostRegister(host_, sizeof(host_), cudaHostRegisterPortable | cudaHostRegisterMapped),
        cudaSuccess);
  }
  // By a GPU that no test has failed.
  ~EmulatedCuda() override {
    cudaDeviceSynchronize();
    EXPECT_EQ(cudaSetDevice(kOther), cudaSuccess);
    cudaHostUnregister(host_);
    cudaGetLastError();
  }

  static cudaStream_t make_stream() {
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
  }

  // Zeroes.
  uint32_t* allocate() {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, kWords * sizeof(uint32_t)), cudaSuccess);
    const cudaStream_t stream = make_stream();
    EXPECT_EQ(cudaMemsetAsync(memory, 0, kWords * sizeof(uint32_t), stream), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    return static_cast<uint32_t*>(memory);
  }

  uint32_t read(const uint32_t* from) {
    EXPECT_EQ(cudaMemcpyAsync(host_, from, sizeof(*from), cudaMemcpyDefault, stream_), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return host_[0];
  }

  // Expects the kernel to fail with `error`; returns the message on stderr.
  template <typename LaunchKernel>
  std::string failure(cudaError_t error, const LaunchKernel& launch_kernel) {
    testing::internal::CaptureStderr();
    launch_kernel();
    EXPECT_EQ(cudaDeviceSynchronize(), error);
    EXPECT_EQ(cudaStreamQuery(stream_), error) << "it is not forgotten";
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, 16), error);
    return testing::internal::GetCapturedStderr();
  }

  int gpu_ = 0;
  cudaStream_t stream_ = nullptr;
  uint32_t* words_ = nullptr;
  alignas(4096) uint32_t host_[kWords] = {};
};

TEST_F(EmulatedCuda, runs_kernels_in_a_streams_order) {
  for (uint32_t value = 0; value < 20; ++value) launch_count(stream_, words_, value, 64);
  EXPECT_EQ(read(words_ + 63), 19U + 31U);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaSuccess);
}

TEST_F(EmulatedCuda, refuses_what_is_outside_every_allocation) {
  const auto launch = [&] { launch_count(stream_, words_ + kWords - 32, 1, 64); };
  EXPECT_THAT(failure(cudaErrorIllegalAddress, launch), HasSubstr("neither memory of a GPU nor"));
}

TEST_F(EmulatedCuda, refuses_what_is_not_aligned) {
  const auto launch = [&] { launch_read_four(stream_, words_, words_ + 1); };
  EXPECT_THAT(failure(cudaErrorMisalignedAddress, launch), HasSubstr("aligned"));
}

TEST_F(EmulatedCuda, reaches_another_gpus_memory_where_that_was_asked_for) {
  ASSERT_EQ(cudaSetDevice(kOther), cudaSuccess);
  uint32_t* const others = allocate();
  ASSERT_EQ(cudaSetDevice(gpu_), cudaSuccess);
  ASSERT_EQ(cudaDeviceEnablePeerAccess(kOther, 0), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(kOther, 0), cudaErrorPeerAccessAlreadyEnabled);
  launch_count(stream_, others, 7, 32);
  EXPECT_EQ(read(others), 7U);
}

TEST_F(EmulatedCuda, does_not_reach_it_elsewhere) {
  ASSERT_EQ(cudaSetDevice(kOther), cudaSuccess);
  ASSERT_EQ(cudaDeviceEnablePeerAccess(gpu_, 0), cudaSuccess) << "the other direction";
  uint32_t* const others = allocate();
  ASSERT_EQ(cudaSetDevice(gpu_), cudaSuccess);
  const auto launch = [&] { launch_count(stream_, others, 7, 32); };
  EXPECT_THAT(failure(cudaErrorIllegalAddress, launch), HasSubstr("has no peer access"));
}

// The child begins anew: this process has threads.
TEST_F(EmulatedCuda, keeps_the_host_from_its_memory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH({ static_cast<volatile uint32_t*>(words_)[0] = 1; },
               "the host touched memory of gpu");
}

TEST_F(EmulatedCuda, reaches_the_hosts_memory_where_it_is_registered) {
  launch_count(stream_, host_, 5, 32);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(host_[31], 5U + 31U);
  EXPECT_EQ(cudaHostRegister(host_, sizeof(host_), cudaHostRegisterPortable),
            cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(cudaHostUnregister(host_), cudaSuccess);
  testing::internal::CaptureStderr();
  EXPECT_EQ(cudaMemcpyAsync(words_, host_, 4, cudaMemcpyDefault, stream_), cudaErrorInvalidValue);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("registered memory"));
  const auto launch = [&] { launch_count(stream_, host_, 6, 32); };
  EXPECT_THAT(failure(cudaErrorIllegalAddress, launch), HasSubstr("registered memory"));
}

TEST_F(EmulatedCuda, runs_streams_at_the_same_time) {
  const cudaStream_t other = make_stream();
  launch_meet(stream_, words_, words_ + 1, words_ + 2);
  launch_meet(other, words_ + 1, words_, words_ + 3);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(read(words_ + 2), 1U);
  EXPECT_EQ(read(words_ + 3), 1U);
}

TEST_F(EmulatedCuda, begins_a_launch_before_the_one_before_has_written) {
  for (int round = 0; round < 10; ++round) {
    ASSERT_EQ(cudaMemsetAsync(words_, 0, kWords * sizeof(uint32_t), stream_), cudaSuccess);
    launch_early_pair(stream_, words_, words_ + 1, words_ + 2);
    ASSERT_EQ(read(words_ + 2), 0U);
    ASSERT_EQ(read(words_ + 3), 1U);
  }
}

TEST_F(EmulatedCuda, records_what_runs_when_the_graph_is_launched) {
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(words_, 0, kWords * sizeof(uint32_t), stream_), cudaSuccess);
  launch_early_pair(stream_, words_, words_ + 1, words_ + 2);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  std::array<cudaGraphNode_t, 2> from = {};
  std::array<cudaGraphNode_t, 2> to = {};
  std::array<cudaGraphEdgeData, 2> edges = {};
  size_t count = edges.size();
  ASSERT_EQ(cudaGraphGetEdges(graph, from.data(), to.data(), edges.data(), &count), cudaSuccess);
  ASSERT_EQ(count, 2U);
  EXPECT_EQ(edges[0].type, cudaGraphDependencyTypeDefault);
  EXPECT_EQ(edges[1].type, cudaGraphDependencyTypeProgrammatic);
  EXPECT_EQ(to[0], from[1]);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(read(words_ + 3), 0U) << "it ran while it was recorded";
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
    EXPECT_EQ(read(words_ + 3), 1U);
  }
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
}

TEST_F(EmulatedCuda, breaks_a_recording_by_a_call_that_it_forbids) {
  testing::internal::CaptureStderr();
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("cudaMalloc while a stream"));
}

TEST_F(EmulatedCuda, refuses_launches_over_its_limits) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(launch_with_shared(stream_, words_, 48U << 10U, false), cudaSuccess);
  EXPECT_EQ(launch_with_shared(stream_, words_, (48U << 10U) + 4, false), cudaErrorInvalidValue);
  EXPECT_EQ(launch_with_shared(stream_, words_, 227U << 10U, true), cudaSuccess);
  EXPECT_EQ(launch_with_shared(stream_, words_, (227U << 10U) + 4, true), cudaErrorInvalidValue);
  cudaGetLastError();
  EXPECT_EQ(launch_bounded(stream_, words_, 64), cudaSuccess);
  EXPECT_EQ(launch_bounded(stream_, words_, 65), cudaErrorLaunchOutOfResources);
  EXPECT_EQ(launch_rows(stream_, words_, kWords), cudaSuccess);
  EXPECT_EQ(launch_rows(stream_, words_, 65536), cudaErrorInvalidConfiguration);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("launch bounds"));
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << "nothing of what was refused has run";
}

TEST_F(EmulatedCuda, counts_its_memory) {
  size_t before = 0;
  size_t after = 0;
  size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 4096), cudaSuccess);
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_EQ(before - after, 4096U);
  EXPECT_EQ(read(static_cast<uint32_t*>(memory)), 0xFFFFFFFFU) << "it holds no sensible number";
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&memory, total), cudaErrorMemoryAllocation);
  testing::internal::CaptureStderr();
  EXPECT_EQ(cudaFree(words_ + 1), cudaErrorInvalidValue);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("is no allocation"));
}

}  // namespace
}  // namespace lockstep::ptx
