// A prompt's products as a GPU computes them, weights unpacked and multiplied by its library,
// against double arithmetic; and a token's bits, whatever is beside it.
#include "engine/kernels/gpu_matrix_library.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/kernels/gpu_panel.h"
#include "engine/kernels/gpu_tile.h"
#include "engine/machine/node_memory.h"
#include "tests/engine/kernels/random_weights.h"
#include "tests/engine/runtime/test_gpus.h"

namespace lockstep {
namespace {

constexpr size_t kSeed = 95;
constexpr std::chrono::seconds kDeadline{10};

class GpuMatrixLibraryTest : public ::testing::Test {
 protected:
  static constexpr size_t kHostBytes = size_t{64} << 20U;

  void SetUp() override {
    if (const std::string absence = no_test_gpus(); !absence.empty()) GTEST_SKIP() << absence;
    device_ = test_gpus().open(0).value();
    ASSERT_TRUE(device_->use().has_value());
    stream_ = device_->make_stream().value();
    host_ = NodeMemory::allocate({.bytes = kHostBytes, .what = "a test's copies"}).value();
    pinned_ = device_->pin({host_.data(), host_.size_bytes()}).value();
    workspace_ = device_->allocate(kGpuLibraryBytes, "the library").value();
    library_ =
        test_gpus().open_matrix_library(0, {workspace_.data(), workspace_.size_bytes()}).value();
  }

  GpuMemory on_gpu(const void* bytes, size_t size) {
    GpuMemory memory = device_->allocate(size, "a test").value();
    EXPECT_LE(size, kHostBytes);
    std::memcpy(host_.data(), bytes, size);
    EXPECT_TRUE(stream_->copy(memory.data(), host_.data(), size).has_value());
    EXPECT_TRUE(stream_->wait(kDeadline).has_value());
    return memory;
  }

  std::vector<float> to_host(const float* from, size_t count) {
    EXPECT_LE(count * sizeof(float), kHostBytes);
    EXPECT_TRUE(stream_->copy(host_.data(), from, count * sizeof(float)).has_value());
    const auto waited = stream_->wait(kDeadline);
    EXPECT_TRUE(waited.has_value());
    EXPECT_TRUE(library_->state().has_value());
    std::vector<float> values(count);
    std::memcpy(values.data(), host_.data(), count * sizeof(float));
    return values;
  }

  std::unique_ptr<GpuDevice> device_;
  std::unique_ptr<GpuStream> stream_;
  NodeMemory host_;
  GpuMemory pinned_;
  GpuMemory workspace_;
  std::unique_ptr<GpuMatrixLibrary> library_;
};

std::vector<uint16_t> as_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> bits(values.size());
  std::ranges::transform(values, bits.begin(), float_to_bf16);
  return bits;
}

// The bound that gpu_panel.h states.
TEST_F(GpuMatrixLibraryTest, products_of_unpacked_weights_are_within_their_bound) {
  RandomEngine random(kSeed);
  constexpr size_t kRows = 90;
  constexpr size_t kTokens = 19;
  constexpr size_t kColumns = 512;
  const GpuKernels& kernels = *test_gpus().kernels;
  const double allowed = std::ldexp(1.0, -9) + kColumns * std::ldexp(1.0, -23);
  for (const FormatTraits& format : all_formats()) {
    if (format.format == Format::kF32 || !has_gpu_kernels(format.format)) continue;
    SCOPED_TRACE(format.name);
    const auto file = random_rows(format.format, kRows, kColumns, random);
    const GpuMemory source = on_gpu(file.data(), file.size());
    const size_t planes_bytes = gpu_matrix_bytes(format.format, kRows, kColumns);
    const GpuMemory planes = device_->allocate(planes_bytes, "weights").value();
    kernels.pack_rows(stream_->handle(),
                      {format.format, kRows, kColumns, source.data(),
                       row_bytes(format.format, kColumns), 0, kRows, planes.data()});
    const size_t panel_rows = gpu_panels({{kRows}}, kColumns, false, {}).front().rows();
    const GpuMemory panel =
        device_->allocate(panel_rows * kColumns * sizeof(uint16_t), "a panel").value();
    auto* unpacked = reinterpret_cast<uint16_t*>(panel.data());
    kernels.unpack_rows(stream_->handle(),
                        {{format.format, kRows, kColumns, planes.data()}, 0, panel_rows, unpacked});
    const std::vector<uint16_t> inputs = as_bf16(random_values(kTokens * kColumns, random));
    const GpuMemory rows = on_gpu(inputs.data(), inputs.size() * sizeof(uint16_t));
    const GpuMemory sums = device_->allocate(panel_rows * kTokens * sizeof(float), "sums").value();
    const GpuMatrixProduct product = {.weights = unpacked,
                                      .rows = panel_rows,
                                      .columns = kColumns,
                                      .inputs = reinterpret_cast<const uint16_t*>(rows.data()),
                                      .input_stride = kColumns,
                                      .tokens = kTokens,
                                      .sums = reinterpret_cast<float*>(sums.data()),
                                      .sum_stride = panel_rows};
    const auto prepared = library_->prepare(stream_->handle(), product);
    ASSERT_TRUE(prepared.has_value()) << prepared.error().message;
    library_->multiply(stream_->handle(), product);
    const std::vector<float> got = to_host(product.sums, panel_rows * kTokens);
    for (size_t row = 0; row < kRows; ++row) {
      std::vector<float> weights(kColumns);
      traits(format.format)
          .dequantize(file.data() + row * row_bytes(format.format, kColumns), kColumns,
                      weights.data());
      for (size_t token = 0; token < kTokens; ++token) {
        double sum = 0;
        double magnitude = 0;
        for (size_t column = 0; column < kColumns; ++column) {
          const double term =
              double{weights[column]} * double{bf16_to_float(inputs[token * kColumns + column])};
          sum += term;
          magnitude += std::abs(term);
        }
        ASSERT_NEAR(double{got[token * panel_rows + row]}, sum, allowed * magnitude + 1e-30)
            << "seed " << kSeed << ", row " << row << ", token " << token;
      }
    }
  }
}

// However many there are, and whichever of them it is: what the chunks and neighbours of a prompt
// decide.
TEST_F(GpuMatrixLibraryTest, a_token_has_the_same_bits_in_every_place) {
  RandomEngine random(kSeed + 1);
  const size_t scale = test_gpu_scale();
  const size_t rows = 96 * scale;
  const size_t columns = 256 * scale;
  const size_t tokens = 130 * scale;
  const size_t stride = columns + 8;
  std::vector<uint16_t> weights = as_bf16(random_values(rows * columns, random));
  const std::vector<uint16_t> inputs = as_bf16(random_values(tokens * stride, random));
  const GpuMemory panel = on_gpu(weights.data(), weights.size() * sizeof(uint16_t));
  const GpuMemory input = on_gpu(inputs.data(), inputs.size() * sizeof(uint16_t));
  const GpuMemory sums = device_->allocate(rows * tokens * sizeof(float), "sums").value();
  GpuMatrixProduct product = {.weights = reinterpret_cast<const uint16_t*>(panel.data()),
                              .rows = rows,
                              .columns = columns,
                              .inputs = reinterpret_cast<const uint16_t*>(input.data()),
                              .input_stride = stride,
                              .tokens = tokens,
                              .sums = reinterpret_cast<float*>(sums.data()),
                              .sum_stride = rows};
  const auto prepared = library_->prepare(stream_->handle(), product);
  ASSERT_TRUE(prepared.has_value()) << prepared.error().message;
  library_->multiply(stream_->handle(), product);
  const std::vector<float> whole = to_host(product.sums, rows * tokens);
  const uint16_t* const first_input = product.inputs;
  for (const size_t count : {size_t{1}, size_t{2}, size_t{17}, size_t{64}, tokens - 1}) {
    for (const size_t first : {size_t{0}, size_t{1}, tokens - count}) {
      if (first + count > tokens) continue;
      product.inputs = first_input + first * stride;
      product.tokens = count;
      library_->multiply(stream_->handle(), product);
      const std::vector<float> some = to_host(product.sums, rows * count);
      ASSERT_EQ(0,
                std::memcmp(some.data(), whole.data() + first * rows, some.size() * sizeof(float)))
          << "seed " << kSeed + 1 << ", " << count << " tokens from " << first << " on";
    }
  }
}

// Rows of sums may lie apart, and what they held be added: rounded once, as the finish would.
TEST_F(GpuMatrixLibraryTest, sums_are_added_to_what_was_there) {
  RandomEngine random(kSeed + 2);
  constexpr size_t kRows = 96;
  constexpr size_t kColumns = 256;
  constexpr size_t kTokens = 37;
  constexpr size_t kStride = kRows + 4;
  const std::vector<uint16_t> weights = as_bf16(random_values(kRows * kColumns, random));
  const std::vector<uint16_t> inputs = as_bf16(random_values(kTokens * kColumns, random));
  const std::vector<float> held = random_values(kTokens * kStride, random);
  const GpuMemory panel = on_gpu(weights.data(), weights.size() * sizeof(uint16_t));
  const GpuMemory input = on_gpu(inputs.data(), inputs.size() * sizeof(uint16_t));
  std::vector<float> plain;
  for (const bool accumulate : {false, true}) {
    GpuMemory sums = on_gpu(held.data(), held.size() * sizeof(float));
    const GpuMatrixProduct product = {.weights = reinterpret_cast<const uint16_t*>(panel.data()),
                                      .rows = kRows,
                                      .columns = kColumns,
                                      .inputs = reinterpret_cast<const uint16_t*>(input.data()),
                                      .input_stride = kColumns,
                                      .tokens = kTokens,
                                      .sums = reinterpret_cast<float*>(sums.data()),
                                      .sum_stride = kStride,
                                      .accumulate = accumulate};
    const auto prepared = library_->prepare(stream_->handle(), product);
    ASSERT_TRUE(prepared.has_value()) << prepared.error().message;
    // The preparation has multiplied as well.
    ASSERT_TRUE(stream_->wait(kDeadline).has_value());
    sums = on_gpu(held.data(), held.size() * sizeof(float));
    GpuMatrixProduct again = product;
    again.sums = reinterpret_cast<float*>(sums.data());
    library_->multiply(stream_->handle(), again);
    const std::vector<float> got = to_host(again.sums, held.size());
    if (!accumulate) plain = got;
    for (size_t index = 0; index < got.size(); ++index) {
      const bool between = index % kStride >= kRows;
      const float wanted = between ? held[index] : plain[index] + held[index];
      if (between || accumulate) {
        ASSERT_EQ(got[index], wanted) << "seed " << kSeed + 2;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
