// Launches that overlap on a real GPU (kernels/cuda/launch_overlap.h). In builds with CUDA alone;
// where there is no GPU, its tests are skipped and say so.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/collectives/gpu_all_reduce.h"
#include "engine/kernels/gpu_launches.h"
#include "engine/machine/gpu_device.h"
#include "engine/machine/node_memory.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kDeadline{60};
// More blocks than a GPU has places: a multiprocessor has 2048 threads at most, each of four
// floats.
constexpr size_t kFloatsOfMultiprocessor = size_t{10} << 10U;
constexpr int kSums = 16;

class LaunchOverlap : public testing::Test {
 protected:
  void SetUp() override {
    auto device = open_cuda_device(0);
    if (!device) GTEST_SKIP() << "no GPU: " << device.error().message;
    device_ = std::move(*device);
    ASSERT_TRUE(device_->use().has_value());
    int multiprocessors = 0;
    ASSERT_EQ(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0),
              cudaSuccess);
    floats_ = static_cast<size_t>(multiprocessors) * kFloatsOfMultiprocessor + 4;
    bytes_ = floats_ * sizeof(float);
    stream_ = device_->make_stream().value();
    for (GpuMemory& memory : memory_) memory = device_->allocate(bytes_, "a test").value();
    host_ = NodeMemory::allocate({.bytes = 2 * bytes_, .what = "a test"}).value();
    pinned_ = device_->pin({host_.data(), host_.size_bytes()}).value();
  }

  float* values(size_t index) { return reinterpret_cast<float*>(memory_[index].data()); }
  float* host() { return reinterpret_cast<float*>(host_.data()); }

  // Each of both is added to the other, in turns: Fibonacci's numbers, if every launch sees what
  // the one before has written, and writes when the one before has read.
  void enqueue_sums() {
    for (int sum = 0; sum < kSums; ++sum) {
      GpuPartSum next;
      next.parts[0] = values(1 - sum % 2);
      next.part_count = 1;
      next.output = values(sum % 2);
      next.count = floats_;
      cuda_collectives().sum_parts(stream_->handle(), next);
    }
  }

  // That the sums are recorded with such edges between them.
  void expect_recorded(bool overlaps) {
    auto* const stream = static_cast<cudaStream_t>(stream_->handle());
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    enqueue_sums();
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    std::vector<cudaGraphNode_t> from(kSums);
    std::vector<cudaGraphNode_t> to(kSums);
    std::vector<cudaGraphEdgeData> edges(kSums);
    size_t count = edges.size();
    ASSERT_EQ(cudaGraphGetEdges(graph, from.data(), to.data(), edges.data(), &count), cudaSuccess);
    ASSERT_EQ(count, size_t{kSums} - 1);
    for (size_t edge = 0; edge < count; ++edge) {
      EXPECT_EQ(edges[edge].type,
                overlaps ? cudaGraphDependencyTypeProgrammatic : cudaGraphDependencyTypeDefault);
    }
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }

  size_t floats_ = 0;  // of each of both
  size_t bytes_ = 0;
  std::unique_ptr<GpuDevice> device_;
  std::unique_ptr<GpuStream> stream_;
  GpuMemory memory_[2];
  NodeMemory host_;
  GpuMemory pinned_;
};

// By themselves and in a recording; between copies, which come before a kernel and after one.
TEST_F(LaunchOverlap, what_a_launch_writes_is_seen_by_the_next) {
  ASSERT_TRUE(stream_->begin_recording().has_value());
  enqueue_sums();
  const auto recording = stream_->end_recording().value();
  for (int round = 0; round < 100; ++round) {
    const bool recorded = round % 2 == 1;
    for (size_t index = 0; index < floats_; ++index) {
      host()[index] = static_cast<float>(index % 7);
      host()[floats_ + index] = 1;
    }
    ASSERT_TRUE(stream_->copy(values(0), host(), bytes_).has_value());
    ASSERT_TRUE(stream_->copy(values(1), host() + floats_, bytes_).has_value());
    if (recorded) {
      ASSERT_TRUE(stream_->play(*recording).has_value());
    } else {
      enqueue_sums();
    }
    ASSERT_TRUE(stream_->copy(host(), values(0), bytes_).has_value());
    ASSERT_TRUE(stream_->copy(host() + floats_, values(1), bytes_).has_value());
    ASSERT_TRUE(stream_->wait(kDeadline).has_value());
    for (size_t index = 0; index < floats_; ++index) {
      float expected[2] = {static_cast<float>(index % 7), 1};
      for (int sum = 0; sum < kSums; ++sum) expected[sum % 2] += expected[1 - sum % 2];
      ASSERT_EQ(host()[index], expected[0]) << "round " << round << ", float " << index;
      ASSERT_EQ(host()[floats_ + index], expected[1]) << "round " << round << ", float " << index;
    }
  }
}

// That they do overlap, where they can and are wanted to, is seen in what is recorded.
TEST_F(LaunchOverlap, is_recorded_where_the_gpu_has_it) {
  int major = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
  for (const bool wanted : {false, true}) {
    let_launches_overlap(wanted);
    expect_recorded(/*overlaps=*/major >= 9 && wanted);
  }
}

}  // namespace
}  // namespace lockstep
