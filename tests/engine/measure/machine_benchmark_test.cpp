// measure_machine() reports GPUs; the tests simulate them.
#include "engine/measure/machine_benchmark.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/engine/kernels/cuda/host_matrix_library.h"
#include "tests/engine/machine/host_device.h"
#include "tests/engine/machine/simulated_gpus.h"
#include "tests/engine/runtime/test_gpus.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class GpuBenchmarkTest : public ::testing::Test {
 protected:
  GpuBenchmarkTest() { reset(); }
  ~GpuBenchmarkTest() override { reset(); }

  static void reset() {
    for (int gpu = 0; gpu < 4; ++gpu) host_gpu(gpu).reset();
    allow_library_products();
  }

  // Their nodes are none of this machine's.
  static Topology machine() {
    Topology topology = machine_with_gpus();
    topology.nodes.clear();
    return topology;
  }

  static MachineMeasurement measure(const Topology& topology) {
    MachineMeasurementOptions options;
    options.memory_bytes = 1U << 16U;
    options.seconds = 0;
    MachineMeasurement measured;
    measure_gpus(&test_gpus(), topology, options, measured);
    for (int gpu = 0; gpu < 4; ++gpu) {
      EXPECT_EQ(host_gpu(gpu).counts().allocated_bytes, 0U);
      EXPECT_EQ(host_gpu(gpu).counts().pinned_bytes, 0U);
    }
    return measured;
  }

  static void expect_figures(const MachineMeasurement::Gpu& gpu) {
    EXPECT_EQ(gpu.failure, "");
    EXPECT_EQ(gpu.memory_bytes, 1U << 16U);
    EXPECT_EQ(gpu.by_clock, 3.3e12);
    for (const double figure : {gpu.read, gpu.copy, gpu.from_host, gpu.to_host, gpu.launch_seconds,
                                gpu.recorded_launch_seconds, gpu.product}) {
      EXPECT_GT(figure, 0) << gpu.index;
    }
  }

  static std::vector<std::string> paths_of(const MachineMeasurement& measured) {
    std::vector<std::string> paths;
    for (const auto& path : measured.gpu_paths) {
      paths.push_back(fmt::format("gpu{} to gpu{} by {}", path.from_gpu, path.to_gpu, path.link));
    }
    return paths;
  }
};

TEST_F(GpuBenchmarkTest, every_gpu_and_every_way_between_two_that_reach_each_other_is_measured) {
  const MachineMeasurement measured = measure(machine());
  ASSERT_EQ(measured.gpus.size(), 4U);
  for (const auto& gpu : measured.gpus) expect_figures(gpu);
  EXPECT_EQ(measured.gpus[3].index, 3);
  EXPECT_EQ(measured.gpus[3].name, "Simulated GPU");
  EXPECT_EQ(measured.no_gpus, "");
  EXPECT_THAT(paths_of(measured),
              ElementsAre("gpu0 to gpu1 by NVLink", "gpu1 to gpu0 by NVLink",
                          "gpu1 to gpu2 by peer access", "gpu2 to gpu1 by peer access",
                          "gpu2 to gpu3 by NVLink", "gpu3 to gpu2 by NVLink"));
  for (const auto& path : measured.gpu_paths) {
    EXPECT_EQ(path.failure, "");
    EXPECT_GT(path.copy, 0);
  }
}

TEST_F(GpuBenchmarkTest, a_gpu_that_fails_says_so_and_the_others_are_measured) {
  host_gpu(1).lose();
  host_gpu(3).lose(40);  // in the midst of it
  const MachineMeasurement measured = measure(machine());
  ASSERT_EQ(measured.gpus.size(), 4U);
  expect_figures(measured.gpus[0]);
  EXPECT_THAT(measured.gpus[1].failure, HasSubstr("gpu1: opening it: the GPU is lost"));
  expect_figures(measured.gpus[2]);
  EXPECT_THAT(measured.gpus[3].failure, HasSubstr("gpu3: "));
  EXPECT_THAT(measured.gpu_paths, IsEmpty());
}

TEST_F(GpuBenchmarkTest, a_way_that_fails_says_so_and_a_gpu_that_is_lost_is_asked_no_more) {
  host_gpu(0).isolate(true);
  MachineMeasurement measured = measure(machine());
  ASSERT_EQ(measured.gpu_paths.size(), 6U);
  EXPECT_THAT(measured.gpu_paths[0].failure, HasSubstr("gpu0 cannot reach the memory of gpu1"));
  EXPECT_EQ(measured.gpu_paths[1].failure, "");
  const size_t calls = host_gpu(1).counts().calls;
  measured = measure(machine());
  const size_t all = host_gpu(1).counts().calls - calls;
  reset();
  host_gpu(1).lose(all - 1);  // at the last that it is asked for, on its way to gpu2
  measured = measure(machine());
  expect_figures(measured.gpus[1]);
  EXPECT_THAT(paths_of(measured), ElementsAre("gpu0 to gpu1 by NVLink", "gpu1 to gpu0 by NVLink",
                                              "gpu1 to gpu2 by peer access",
                                              "gpu2 to gpu3 by NVLink", "gpu3 to gpu2 by NVLink"));
  EXPECT_THAT(measured.gpu_paths[2].failure, HasSubstr("gpu1: "));
}

TEST_F(GpuBenchmarkTest, a_product_that_is_refused_says_so_beside_the_other_figures) {
  refuse_library_products(0);
  const MachineMeasurement measured = measure(machine());
  ASSERT_EQ(measured.gpus.size(), 4U);
  for (const auto& gpu : measured.gpus) {
    EXPECT_EQ(gpu.failure, fmt::format("gpu{}: the library refused a product", gpu.index));
    EXPECT_EQ(gpu.product, 0);
    EXPECT_GT(gpu.read, 0);
    EXPECT_GT(gpu.recorded_launch_seconds, 0);
  }
}

TEST_F(GpuBenchmarkTest, where_there_are_none_the_reason_is_told) {
  Topology topology = machine();
  topology.gpus.clear();
  topology.no_gpus = "somebody took them";
  MachineMeasurement measured;
  measure_gpus(nullptr, topology, {}, measured);
  EXPECT_THAT(measured.gpus, IsEmpty());
  EXPECT_EQ(measured.no_gpus, "somebody took them");
}

}  // namespace
}  // namespace lockstep
