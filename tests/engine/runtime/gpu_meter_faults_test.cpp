// A measurement of a GPU that something keeps from ending, and what it leaves: on simulated GPUs.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <thread>

#include "engine/runtime/gpu/gpu_executor.h"
#include "engine/runtime/gpu/gpu_meter.h"
#include "engine/runtime/gpu/gpu_program.h"
#include "engine/tensor/format.h"
#include "tests/engine/kernels/cuda/host_matrix_library.h"
#include "tests/engine/kernels/cuda/launch_stream.h"
#include "tests/engine/machine/host_device.h"
#include "tests/engine/machine/simulated_gpus.h"
#include "tests/engine/runtime/test_gpus.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint64_t kBytes = 2 * kGpuReadStretch;

class GpuMeterFaultsTest : public ::testing::Test {
 protected:
  GpuMeterFaultsTest() { reset(); }
  ~GpuMeterFaultsTest() override { reset(); }

  static void reset() {
    for (int gpu = 0; gpu < 2; ++gpu) host_gpu(gpu).reset();
    allow_library_products();
  }

  // Everything that can be measured of the GPU 0, and of its way to the GPU 1.
  static Result<void> measure_all() {
    const auto meter = GpuMeter::open(test_gpus(), simulated_gpu(0, -1), {kBytes, 0});
    if (!meter) return std::unexpected(meter.error());
    const auto other = GpuMeter::open(test_gpus(), simulated_gpu(1, -1), {kBytes, 0});
    if (!other) return std::unexpected(other.error());
    if (auto read = (*meter)->read(); !read) return std::unexpected(read.error());
    if (auto copy = (*meter)->copy(); !copy) return std::unexpected(copy.error());
    if (auto copy = (*meter)->copy_to(**other); !copy) return std::unexpected(copy.error());
    if (auto host = (*meter)->copy_host(-1); !host) return std::unexpected(host.error());
    if (auto launch = (*meter)->launch(); !launch) return std::unexpected(launch.error());
    if (auto product = (*meter)->product(); !product) return std::unexpected(product.error());
    return {};
  }

  static std::string failure() {
    const auto measured = measure_all();
    if (measured) return "";
    EXPECT_EQ(measured.error().kind, ErrorKind::kMachineRefused);
    return measured.error().message;
  }

  static void expect_nothing_kept() {
    for (int gpu = 0; gpu < 2; ++gpu) {
      const HostGpu::Counts counts = host_gpu(gpu).counts();
      EXPECT_EQ(counts.allocated_bytes, 0U) << gpu;
      EXPECT_EQ(counts.pinned_bytes, 0U) << gpu;
    }
  }
};

TEST_F(GpuMeterFaultsTest, what_is_taken_is_given_back) {
  EXPECT_EQ(failure(), "");
  EXPECT_GT(host_gpu(0).counts().allocations, 0U);
  EXPECT_GT(host_gpu(0).counts().pinnings, 0U);
  expect_nothing_kept();
}

TEST_F(GpuMeterFaultsTest, whichever_call_fails_the_gpu_is_named_and_nothing_is_kept) {
  const size_t closed = closed_libraries();
  EXPECT_EQ(failure(), "");
  EXPECT_EQ(closed_libraries(), closed + 1);
  const size_t calls = host_gpu(0).counts().calls;
  for (size_t call = 0; call < calls; ++call) {
    reset();
    host_gpu(0).lose(call);
    EXPECT_THAT(failure(), StartsWith("gpu0: ")) << call;
    expect_nothing_kept();
  }
  EXPECT_EQ(closed_libraries(), closed + 1);  // closing one would wait for a GPU that is lost
}

TEST_F(GpuMeterFaultsTest, products_that_are_refused_and_a_library_that_is_not_there_are_told) {
  const size_t closed = closed_libraries();
  for (const size_t products : {0U, 1U, 5U}) {  // when it is prepared, and later
    refuse_library_products(products);
    EXPECT_EQ(failure(), "gpu0: the library refused a product") << products;
    expect_nothing_kept();
  }
  EXPECT_EQ(closed_libraries(), closed + 3);
  GpuPlatform platform = test_gpus();
  platform.open_matrix_library = nullptr;
  const auto meter = GpuMeter::open(platform, simulated_gpu(0, -1), {kBytes, 0});
  ASSERT_TRUE(meter.has_value()) << meter.error().message;
  const auto product = (*meter)->product();
  ASSERT_FALSE(product.has_value());
  EXPECT_EQ(product.error().message, "gpu0: there is no library to multiply matrices with");
}

// Looks at every product before it is computed, and takes its time.
class LookingLibrary final : public GpuMatrixLibrary {
 public:
  static constexpr std::chrono::milliseconds kTime{1};
  static inline size_t products = 0;
  static inline GpuMatrixProduct last;
  static inline std::map<uint16_t, size_t> elements;  // of the last one's operands

  static Result<std::unique_ptr<GpuMatrixLibrary>> open(int, std::span<std::byte> workspace) {
    EXPECT_EQ(workspace.size(), kGpuLibraryBytes);
    return std::make_unique<LookingLibrary>();
  }

  Result<void> prepare(void* stream, const GpuMatrixProduct& product) override {
    multiply(stream, product);
    return {};
  }
  void multiply(void* stream, const GpuMatrixProduct& product) override {
    static_cast<LaunchStream*>(stream)->enqueue_library([product] {
      ++products;
      last = product;
      elements.clear();
      for (size_t place = 0; place < product.rows * product.columns; ++place) {
        ++elements[product.weights[place]];
        ++elements[product.inputs[place]];
      }
      std::this_thread::sleep_for(kTime);
    });
  }
  Result<void> state() const override { return {}; }
  void abandon() override {}
};

TEST_F(GpuMeterFaultsTest, a_product_is_of_random_squares_and_as_fast_as_its_operations_say) {
  GpuPlatform platform = test_gpus();
  platform.open_matrix_library = &LookingLibrary::open;
  LookingLibrary::products = 0;
  const auto meter = GpuMeter::open(platform, simulated_gpu(0, -1), {kBytes, 0});
  ASSERT_TRUE(meter.has_value()) << meter.error().message;
  const auto rate = (*meter)->product();
  ASSERT_TRUE(rate.has_value()) << rate.error().message;
  EXPECT_EQ(LookingLibrary::products, 6U);  // prepared, one to begin with, four rounds
  const GpuMatrixProduct& product = LookingLibrary::last;
  EXPECT_EQ(product.rows, 64U);  // 8 bytes for each of a square's elements: no more find space
  EXPECT_EQ(product.columns, 64U);
  EXPECT_EQ(product.input_stride, 64U);
  EXPECT_EQ(product.tokens, 64U);
  const double seconds = std::chrono::duration<double>(LookingLibrary::kTime).count();
  EXPECT_LE(*rate, 2 * 64 * 64 * 64 / seconds);
  // 2048 numbers could be drawn 8192 times. All are ordinary ones, of either sign.
  EXPECT_GT(LookingLibrary::elements.size(), 1900U);
  size_t negative = 0;
  for (const auto& [bits, count] : LookingLibrary::elements) {
    const float value = bf16_to_float(bits);
    EXPECT_GE(std::abs(value), 0.0078125F);
    EXPECT_LT(std::abs(value), 2);
    if (value < 0) negative += count;
    EXPECT_LT(count, 30U) << value;
  }
  EXPECT_NEAR(static_cast<double>(negative), 4096, 300);
}

TEST_F(GpuMeterFaultsTest, a_gpu_that_does_not_answer_is_given_up_after_a_passes_deadline) {
  host_gpu(0).hang(std::chrono::milliseconds(1));
  const std::string deadline =
      fmt::format("{} ns", std::chrono::nanoseconds(GpuSettings::kPassDeadline).count());
  EXPECT_THAT(failure(), StartsWith("gpu0: what it was to do was not done within " + deadline));
  expect_nothing_kept();
}

TEST_F(GpuMeterFaultsTest, memory_that_cannot_be_had_and_ways_that_are_not_there_are_told) {
  host_gpu(0).set_memory(kBytes - 1);
  EXPECT_THAT(failure(), HasSubstr("gpu0: 32768 bytes of memory for a measurement of its speed"));
  host_gpu(0).reset();
  host_gpu(0).set_pinnable(kBytes - 1);
  EXPECT_THAT(failure(), HasSubstr("cannot be pinned"));
  host_gpu(0).reset();
  host_gpu(0).isolate(true);
  EXPECT_THAT(failure(), HasSubstr("gpu0 cannot reach the memory of gpu1"));
  expect_nothing_kept();
}

// The GPU is late, as far as it may be: what is measured is what it has done.
TEST_F(GpuMeterFaultsTest, figures_are_of_what_is_done_and_not_of_what_is_asked_for) {
  host_gpu(0).run_late(true);
  const auto meter = GpuMeter::open(test_gpus(), simulated_gpu(0, -1), {kBytes, 0});
  ASSERT_TRUE(meter.has_value()) << meter.error().message;
  const size_t before = host_gpu(0).counts().launches;
  ASSERT_TRUE((*meter)->read().has_value());
  EXPECT_EQ(host_gpu(0).counts().launches - before, 5U);  // one to begin with, four rounds
}

// However quick they are.
TEST_F(GpuMeterFaultsTest, cuda_is_not_asked_for_more_at_once_than_it_takes) {
  GpuKernels kernels = *test_gpus().kernels;
  kernels.read_memory = [](void* stream, const GpuRead&) {
    static_cast<LaunchStream*>(stream)->enqueue_library([] {});
  };
  GpuPlatform platform = test_gpus();
  platform.kernels = &kernels;
  const auto meter = GpuMeter::open(platform, simulated_gpu(0, -1), {kBytes, 0.1});
  ASSERT_TRUE(meter.has_value()) << meter.error().message;
  ASSERT_TRUE((*meter)->launch().has_value());
  EXPECT_LE(host_gpu(0).counts().ahead_max, GpuProgram::kLaunchesAtOnce);
}

}  // namespace
}  // namespace lockstep
