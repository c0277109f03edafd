// Which of the library's kernels multiplies prompted tokens, where some that it offers will not do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/kernels/gpu_matrix_library.h"
#include "engine/machine/gpu_device.h"
#include "engine/machine/node_memory.h"
#include "engine/tensor/format.h"
#include "tests/emulators/gpu/cuda/cublas_lt_offers.h"

namespace lockstep {
namespace {

using ptx::OfferedKernel;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::chrono::seconds kDeadline{60};
constexpr int kGpu = 14;  // which no other test fails
constexpr size_t kRows = 32;
constexpr size_t kColumns = 64;
constexpr size_t kTokens = 200;  // at most; no multiple of any step
constexpr size_t kSpace = kTokens + 63;
constexpr float kUntouched = 12345;

class MatrixLibraryChoice : public testing::Test {
 protected:
  MatrixLibraryChoice() {
    setenv("EMULATED_GPUS", "16", 1);
    device_ = open_cuda_device(kGpu).value();
    EXPECT_TRUE(device_->use().has_value());
    stream_ = device_->make_stream().value();
    host_ = NodeMemory::allocate({.bytes = kSpace * kColumns * sizeof(float), .what = "a test"})
                .value();
    pinned_ = device_->pin({host_.data(), host_.size_bytes()}).value();
    workspace_ = device_->allocate(1U << 16U, "a library").value();
    open_library();
    weights_ = numbers(kRows);
    inputs_ = numbers(kSpace);
    sums_ = device_->allocate(kSpace * kRows * sizeof(float), "sums").value();
    product_ = {.weights = reinterpret_cast<const uint16_t*>(weights_.data()),
                .rows = kRows,
                .columns = kColumns,
                .inputs = reinterpret_cast<const uint16_t*>(inputs_.data()),
                .input_stride = kColumns,
                .tokens = kTokens,
                .sums = reinterpret_cast<float*>(sums_.data()),
                .sum_stride = kRows};
  }
  ~MatrixLibraryChoice() override { ptx::offered_kernels() = {OfferedKernel()}; }

  void open_library() {
    library_ = open_cuda_matrix_library(kGpu, {workspace_.data(), workspace_.size_bytes()}).value();
  }

  // Rows of kColumns bf16 on the GPU.
  GpuMemory numbers(size_t rows) {
    std::vector<uint16_t> bits(rows * kColumns);
    for (size_t index = 0; index < bits.size(); ++index) {
      bits[index] = float_to_bf16(static_cast<float>(index * 37 % 101) / 64 - 0.75F);
    }
    GpuMemory memory = device_->allocate(bits.size() * sizeof(uint16_t), "numbers").value();
    std::memcpy(host_.data(), bits.data(), memory.size_bytes());
    copy(memory.data(), host_.data(), memory.size_bytes());
    return memory;
  }

  void copy(void* to, const void* from, size_t bytes) {
    EXPECT_TRUE(stream_->copy(to, from, bytes).has_value());
    EXPECT_TRUE(stream_->wait(kDeadline).has_value());
  }

  // The sums of so many tokens from `first` on, and of the rows behind.
  std::vector<float> multiply(size_t first, size_t tokens) {
    std::vector<float> sums(kSpace * kRows, kUntouched);
    std::memcpy(host_.data(), sums.data(), sums_.size_bytes());
    copy(sums_.data(), host_.data(), sums_.size_bytes());
    GpuMatrixProduct part = product_;
    part.inputs += first * kColumns;
    part.tokens = tokens;
    library_->multiply(stream_->handle(), part);
    EXPECT_TRUE(library_->state().has_value());
    copy(host_.data(), sums_.data(), sums_.size_bytes());
    std::memcpy(sums.data(), host_.data(), sums_.size_bytes());
    return sums;
  }

  // The tokens whose sums were written where so many were asked for.
  size_t written(size_t tokens) {
    const std::vector<float> sums = multiply(0, tokens);
    const auto touched = std::ranges::count_if(sums, [](float sum) { return sum != kUntouched; });
    return static_cast<size_t>(touched) / kRows;
  }

  void expect_same_bits_in_every_place() {
    const std::vector<float> whole = multiply(0, kTokens);
    for (const size_t count : {size_t{1}, size_t{2}, size_t{33}, size_t{64}, kTokens - 1}) {
      for (const size_t first : {size_t{0}, size_t{1}, kTokens - count}) {
        const std::vector<float> some = multiply(first, count);
        EXPECT_EQ(0, std::memcmp(some.data(), whole.data() + first * kRows,
                                 count * kRows * sizeof(float)))
            << count << " tokens from " << first << " on";
      }
    }
  }

  Result<void> prepare(std::vector<OfferedKernel> kernels) {
    ptx::offered_kernels() = std::move(kernels);
    return library_->prepare(stream_->handle(), product_);
  }

  std::unique_ptr<GpuDevice> device_;
  std::unique_ptr<GpuStream> stream_;
  NodeMemory host_;
  GpuMemory pinned_;
  GpuMemory workspace_;
  GpuMemory weights_;
  GpuMemory inputs_;
  GpuMemory sums_;
  std::unique_ptr<GpuMatrixLibrary> library_;
  GpuMatrixProduct product_;
};

TEST_F(MatrixLibraryChoice, one_that_takes_any_number_computes_no_more_than_there_are) {
  ASSERT_TRUE(prepare({{.cuts_sums = true}, {}}).has_value());
  EXPECT_EQ(written(1), 1U);
  EXPECT_EQ(written(65), 65U);
  expect_same_bits_in_every_place();
}

// Behind many that will not do.
TEST_F(MatrixLibraryChoice, the_library_is_asked_for_many) {
  std::vector<OfferedKernel> kernels(40, OfferedKernel{.cuts_sums = true});
  kernels.emplace_back();
  ASSERT_TRUE(prepare(std::move(kernels)).has_value());
  expect_same_bits_in_every_place();
}

// The emulated library refuses other numbers.
TEST_F(MatrixLibraryChoice, a_kernel_may_take_whole_steps_of_tokens) {
  for (const uint64_t step : {8U, 64U}) {
    ASSERT_TRUE(prepare({OfferedKernel()}).has_value());
    const std::vector<float> wanted = multiply(0, kTokens);
    open_library();
    ASSERT_TRUE(prepare({{.column_step = step}}).has_value());
    EXPECT_EQ(multiply(0, kTokens), wanted);
    for (const size_t tokens : {size_t{1}, step - 1, step, step + 1, kTokens}) {
      EXPECT_EQ(written(tokens), tokens) << "in steps of " << step;
    }
    expect_same_bits_in_every_place();
    open_library();
  }
}

// The best kernel for the most tokens takes no others; the one that is offered for few takes all.
TEST_F(MatrixLibraryChoice, one_that_is_offered_for_few_tokens_will_do_for_many) {
  ASSERT_TRUE(prepare({{.column_step = kTokens}, {.offered_columns_max = 64}}).has_value());
  EXPECT_EQ(written(3), 3U);
  expect_same_bits_in_every_place();
}

TEST_F(MatrixLibraryChoice, where_there_is_none_the_shape_is_named) {
  const auto refused = prepare({{.column_step = kTokens}, {.cuts_sums = true}});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("32 rows of 64 columns"), HasSubstr("up to 200 or whole steps"),
                    HasSubstr("--devices cpu")));
}

TEST_F(MatrixLibraryChoice, a_step_that_has_no_space_beside_the_kernels_is_not_taken) {
  workspace_ = device_->allocate(1U << 14U, "a library").value();
  open_library();
  EXPECT_FALSE(prepare({{.column_step = 128}}).has_value());
  EXPECT_TRUE(prepare({{.column_step = 128}, {.column_step = 16}}).has_value());
  EXPECT_EQ(written(1), 1U);
}

}  // namespace
}  // namespace lockstep
