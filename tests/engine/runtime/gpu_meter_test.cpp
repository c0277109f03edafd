// Measurements of a GPU give figures. Their values are not tested: they depend on the GPU.
#include "engine/runtime/gpu/gpu_meter.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/machine/device_choice.h"
#include "tests/engine/machine/simulated_gpus.h"
#include "tests/engine/runtime/test_gpus.h"

namespace lockstep {
namespace {

constexpr uint64_t kBytes = 4 * kGpuReadStretch;

class GpuMeterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string none = no_test_gpus(); !none.empty()) GTEST_SKIP() << none;
  }

  std::unique_ptr<GpuMeter> open(int gpu) const {
    auto meter = GpuMeter::open(test_gpus(), simulated_gpu(gpu, -1), {kBytes, 0});
    EXPECT_TRUE(meter.has_value()) << meter.error().message;
    return meter ? std::move(*meter) : nullptr;
  }
};

TEST_F(GpuMeterTest, every_figure_of_a_gpu_is_found) {
  const auto meter = open(0);
  ASSERT_NE(meter, nullptr);
  EXPECT_EQ(meter->memory_bytes(), kBytes);
  EXPECT_GT(meter->read().value(), 0);
  EXPECT_GT(meter->copy().value(), 0);
  const auto host = meter->copy_host(-1);
  ASSERT_TRUE(host.has_value()) << host.error().message;
  EXPECT_GT(host->from_host, 0);
  EXPECT_GT(host->to_host, 0);
  const auto launch = meter->launch();
  ASSERT_TRUE(launch.has_value()) << launch.error().message;
  EXPECT_GT(launch->alone, 0);
  EXPECT_GT(launch->recorded, 0);
  EXPECT_LT(launch->recorded, 1);
  const auto product = meter->product();
  ASSERT_TRUE(product.has_value()) << product.error().message;
  EXPECT_GT(*product, 0);
}

TEST_F(GpuMeterTest, what_goes_to_another_gpu_is_measured) {
  const auto from = open(0);
  const auto to = open(1);
  ASSERT_TRUE(from != nullptr && to != nullptr);
  const auto speed = from->copy_to(*to);
  if (!speed && speed.error().message.find("cannot reach") != std::string::npos) {
    GTEST_SKIP() << speed.error().message;
  }
  ASSERT_TRUE(speed.has_value()) << speed.error().message;
  EXPECT_GT(*speed, 0);
}

TEST_F(GpuMeterTest, no_more_memory_is_looked_at_than_is_free) {
  Gpu gpu = simulated_gpu(0, -1);
  gpu.free_bytes -= usable_bytes(gpu) - 2 * kGpuReadStretch - 1;
  ASSERT_EQ(usable_bytes(gpu), 2 * kGpuReadStretch + 1);
  const auto meter = GpuMeter::open(test_gpus(), gpu, {kBytes, 0});
  ASSERT_TRUE(meter.has_value()) << meter.error().message;
  EXPECT_EQ((*meter)->memory_bytes(), 2 * kGpuReadStretch);
  gpu.free_bytes -= 2;
  const auto refused = GpuMeter::open(test_gpus(), gpu, {kBytes, 0});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::kMachineRefused);
  EXPECT_EQ(refused.error().message.substr(0, 30), "gpu0: none of its memory is fr");
}

}  // namespace
}  // namespace lockstep
