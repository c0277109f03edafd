// The row of AMX as it was compiled for it: its products go through tiles, give the bits of the
// same kernels over a model of the tiles, and leave no tile in use.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>

#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/random_weights.h"
#include "tests/engine/kernels/software_tiles.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {
namespace {

constexpr uint64_t kSeed = 101;

struct Size {
  size_t rows;
  size_t columns;  // of formats without blocks; others have it rounded up
  size_t tokens;
};

AlignedBuffer product(const KernelTable& table, const RandomMatrix& matrix,
                      const Activations& activations, const Size& size) {
  AlignedBuffer output(size.tokens * activation_stride(size.rows) * sizeof(float));
  matmul_kernel(table, matrix.packed().format,
                ActivationForm::kBf16)({.matrix = matrix.packed(),
                                        .panel_end = matrix.packed().panel_count(),
                                        .input = activations.row(0),
                                        .input_stride_bytes = activations.stride_bytes(),
                                        .token_count = size.tokens,
                                        .output = output.floats(),
                                        .output_stride = activation_stride(size.rows)});
  return output;
}

constexpr size_t divide_up(size_t a, size_t b) {
  return (a + b - 1) / b;
}

class AmxRow : public testing::TestWithParam<Format> {
 protected:
  void SetUp() override {
    if (!emulation_.obstacle().empty()) GTEST_SKIP() << emulation_.obstacle();
  }
  // As the row and the model of it compute it.
  void expect_same_bits(const Size& size) {
    SCOPED_TRACE(
        fmt::format("{} rows, {} columns, {} tokens", size.rows, size.columns, size.tokens));
    RandomEngine random(kSeed);
    const size_t columns = round_up<size_t>(size.columns, traits(GetParam()).block_elements);
    const RandomMatrix matrix(GetParam(), size.rows, columns, random);
    const Activations activations(*all_kernel_tables().front(), ActivationForm::kBf16,
                                  random_values(size.tokens * columns, random), size.tokens,
                                  columns);
    const uint64_t before = emulation_.count(TileOperation::kBf16Product);
    const AlignedBuffer actual = product(amx_kernel_table(), matrix, activations, size);
    const uint64_t products = emulation_.count(TileOperation::kBf16Product) - before;
    const AlignedBuffer expected = product(software_tiles_avx512(), matrix, activations, size);
    ASSERT_EQ(std::memcmp(actual.data(), expected.data(),
                          size.tokens * activation_stride(size.rows) * sizeof(float)),
              0);
    if (!emulation_.is_active()) return;
    const size_t parts = GetParam() == Format::kF16 ? 2 : 1;
    EXPECT_EQ(products, divide_up(size.tokens, 16) * divide_up(size.rows, 16) *
                            divide_up(columns, 32) * parts);
  }

  TileEmulation emulation_;
};

TEST_P(AmxRow, gives_the_bits_of_the_model_for_any_number_of_tokens) {
  for (size_t tokens = 1; tokens <= 33; ++tokens) {
    expect_same_bits({.rows = 1 + 13 * tokens % 80, .columns = 1 + 17 * tokens, .tokens = tokens});
  }
}

TEST_P(AmxRow, gives_the_bits_of_the_model_for_a_prompt) {
  expect_same_bits({.rows = 35, .columns = 77, .tokens = 545});
}

TEST_P(AmxRow, leaves_no_tile_in_use) {
  for (const size_t tokens : {1U, 16U, 17U, 40U}) {
    expect_same_bits({.rows = 35, .columns = 64, .tokens = tokens});
    std::array<uint8_t, 64> configuration;
    configuration.fill(0xFF);
    asm volatile("sttilecfg %0" : "=m"(configuration)::"memory");
    EXPECT_EQ(configuration, (std::array<uint8_t, 64>{}));
  }
}

std::vector<Format> formats() {
  std::vector<Format> formats;
  for (const FormatTraits& format : all_formats()) {
    if (format.format != Format::kF32) formats.push_back(format.format);
  }
  return formats;
}

std::string format_name(const testing::TestParamInfo<Format>& info) {
  return std::string(traits(info.param).name);
}

INSTANTIATE_TEST_SUITE_P(Formats, AmxRow, testing::ValuesIn(formats()), format_name);

}  // namespace
}  // namespace lockstep
