// Products of prompted tokens on a GPU: which rows make a panel, what unpacked weights are, and
// that what follows a product is the same whichever kernel has computed its sums.
#include "engine/kernels/gpu_panel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "tests/engine/kernels/cuda/format_cases.h"
#include "tests/engine/kernels/cuda/product_inputs.h"

namespace lockstep {
namespace {

constexpr size_t kSeed = 90;

TEST(GpuPanels, have_every_row_once_and_no_more_than_fit) {
  struct Case {
    std::vector<size_t> part_rows;
    bool gate;
  };
  const Case cases[] = {
      {{4096, 1024, 1024}, false}, {{14336, 14336}, true}, {{1}, false},    {{40, 40}, true},
      {{100, 7, 33}, false},       {{96, 96}, false},      {{8193}, false}, {{8192, 8192}, true}};
  for (const GpuPanelLimits& limits :
       {GpuPanelLimits{}, GpuPanelLimits{64, 1 << 30}, GpuPanelLimits{8192, 1}}) {
    for (const Case& each : cases) {
      const size_t most = gpu_panel_rows_max(4096, limits);
      const auto panels = gpu_panels(each.part_rows, 4096, each.gate, limits);
      std::array<size_t, kGpuProductParts> next = {};
      for (const GpuPanel& panel : panels) {
        EXPECT_LE(panel.rows(), most);
        EXPECT_GT(panel.rows(), 0U);
        for (size_t part = 0; part < kGpuProductParts; ++part) {
          EXPECT_EQ(panel.row_count[part] % kGpuPanelStep, 0U);
          if (panel.row_count[part] == 0) continue;
          EXPECT_EQ(panel.row_begin[part], next[part]);
          next[part] += panel.row_count[part];
        }
        if (each.gate) {
          EXPECT_EQ(panel.row_count[0], panel.row_count[1]);
        }
      }
      for (size_t part = 0; part < each.part_rows.size(); ++part) {
        EXPECT_EQ(next[part], (each.part_rows[part] + 31) / 32 * 32);
      }
      // About as large as one another: the last one alone may be smaller, by less than a step each.
      const size_t rows = panels.front().rows();
      for (const GpuPanel& panel : panels) EXPECT_LE(panel.rows(), rows);
      EXPECT_GT(panels.back().rows() + 2 * kGpuPanelStep * panels.size(), rows);
    }
  }
  EXPECT_EQ(gpu_panel_rows_max(4096, {}), 16384U);
  EXPECT_EQ(gpu_panel_rows_max(14336, {}), 4672U);
  EXPECT_TRUE(gpu_panels(std::vector<size_t>{0}, 64, false, {}).empty());
}

class GpuUnpackingOf : public testing::TestWithParam<Format> {};

TEST_P(GpuUnpackingOf, gives_the_files_values_rounded_to_bf16) {
  RandomEngine random(kSeed);
  constexpr size_t kRows = 70;  // of the fifth panel 6
  constexpr size_t kBegin = 16;
  constexpr size_t kCount = 80;  // to row 96: the sixth panel is not there
  const size_t block = traits(GetParam()).block_elements;
  // An odd end where there can be one; of half a tile, and over more than one block of threads.
  for (const size_t columns : {block == 256 ? size_t{512} : 9 * 64 + 32 + (block == 1 ? 3 : 0),
                               block == 1 ? size_t{5} : block}) {
    const Weights weights(GetParam(), kRows, columns, random);
    const size_t stride = gpu_panel_columns(columns);
    AlignedBuffer memory((kCount * stride + 8) * sizeof(uint16_t));
    auto* rows = reinterpret_cast<uint16_t*>(memory.data());
    std::fill_n(rows, kCount * stride + 8, uint16_t{0xABCD});
    gpu_unpack_rows(nullptr, {weights.matrix(), kBegin, kCount, rows});
    for (size_t row = 0; row < kCount; ++row) {
      std::vector<float> values(columns);
      if (kBegin + row < kRows) unpack_gpu_row(weights.matrix(), kBegin + row, values.data());
      for (size_t column = 0; column < stride; ++column) {
        const uint16_t got = rows[row * stride + column];
        const bool is_weight = kBegin + row < kRows && column < columns;
        // Zeros of either sign may follow.
        ASSERT_EQ(is_weight ? got : got & 0x7FFFU, is_weight ? float_to_bf16(values[column]) : 0)
            << "seed " << kSeed << ", row " << row << ", column " << column << " of " << columns;
      }
    }
    for (size_t at = 0; at < 8; ++at) EXPECT_EQ(rows[kCount * stride + at], 0xABCD);
  }
}

// F32 weights are multiplied as they are.
std::vector<Format> unpacked_formats() {
  std::vector<Format> formats = every_format();
  std::erase(formats, Format::kF32);
  return formats;
}

INSTANTIATE_TEST_SUITE_P(Formats, GpuUnpackingOf, testing::ValuesIn(unpacked_formats()),
                         name_of_format);

constexpr size_t kColumns = 256;
constexpr uint32_t kTokens = 21;
constexpr size_t kFirst = 4;  // tokens before it are not finished
constexpr size_t kStride = 128;

// Everything that a product of kTokens tokens may write.
struct Written {
  std::vector<float> outputs[kGpuProductParts];
  std::vector<uint16_t> bf16[kGpuProductNorms];
  std::vector<float> f32[kGpuProductNorms];
  std::vector<float> sums[kGpuProductNorms];

  explicit Written(const std::vector<float>& before) {
    for (auto& output : outputs) output = before;
    for (size_t norm = 0; norm < kGpuProductNorms; ++norm) {
      bf16[norm].assign(kTokens * kStride, 0xABCD);
      f32[norm].assign(kTokens * kStride, -3.0F);
      sums[norm].assign(kTokens * 8, -3.0F);
    }
  }
  GpuRows rows(size_t norm) { return {bf16[norm].data(), kStride, f32[norm].data(), kStride}; }
  bool operator==(const Written&) const = default;
};

// The sums of kFirst and later tokens, as a library leaves them of a panel: those of gpu_product().
std::vector<float> sums_of(const GpuProduct& product, const GpuPanel& panel, const Inputs& inputs) {
  std::vector<float> sums;
  std::array<std::vector<float>, kGpuProductParts> plain;
  for (size_t part = 0; part < product.part_count; ++part) {
    plain[part] = multiply_all(product.parts[part].matrix, inputs, kFirst, kTokens - kFirst,
                               kTokens - kFirst);
  }
  for (size_t token = kFirst; token < kTokens; ++token) {
    for (size_t part = 0; part < product.part_count; ++part) {
      const size_t rows = product.parts[part].matrix.rows;
      for (size_t index = 0; index < panel.row_count[part]; ++index) {
        const size_t row = panel.row_begin[part] + index;
        // Rows beyond are sums of zeros, which nobody uses.
        sums.push_back(row < rows ? plain[part][(token - kFirst) * rows + row] : NAN);
      }
    }
  }
  return sums;
}

// Adds the sums to the output as a library does, then forms the norms of all rows.
void compute_in_place(GpuProduct product, const Inputs& inputs) {
  const GpuPart& part = product.parts[0];
  const size_t rows = part.matrix.rows;
  const GpuPanel whole = {
      .row_count = {(rows + kGpuPanelStep - 1) / kGpuPanelStep * kGpuPanelStep}};
  const std::vector<float> sums = sums_of(product, whole, inputs);
  for (size_t token = kFirst; token < kTokens; ++token) {
    for (size_t row = 0; row < rows; ++row) {
      part.output[token * part.output_stride + row] += sums[(token - kFirst) * whole.rows() + row];
    }
  }
  product.token_count = inputs.token_count();
  product.token_begin = kFirst;
  product.token_limit = 1000;
  gpu_finish_panel(nullptr, {product, whole, /*sums=*/nullptr, /*grid_rows=*/3});
}

// By windows of gpu_product(), or by panels.
void compute(GpuProduct product, const Inputs& inputs, const GpuPanelLimits* limits) {
  product.input = inputs.row(0);
  product.input_stride_bytes = inputs.stride_bytes();
  product.token_count = inputs.token_count();
  product.token_begin = kFirst;
  product.token_limit = kGpuProductTokens;
  if (limits == nullptr) return gpu_product(nullptr, product);
  std::vector<size_t> rows;
  for (size_t part = 0; part < product.part_count; ++part) {
    rows.push_back(product.parts[part].matrix.rows);
  }
  const bool gate = product.finish == GpuFinish::kGate;
  for (const GpuPanel& panel : gpu_panels(rows, kColumns, gate, *limits)) {
    const std::vector<float> sums = sums_of(product, panel, inputs);
    product.token_limit = 1000;
    gpu_finish_panel(nullptr, {product, panel, sums.data(), /*grid_rows=*/2});
  }
}

constexpr GpuPanelLimits kSmall = {64, 1 << 30};
constexpr GpuPanelLimits kLarge = {};

TEST(GpuPanelFinish, parts_have_factor_scale_bias_and_what_was_there) {
  RandomEngine random(kSeed + 1);
  const Weights weights[] = {{Format::kQ4_0, 70, kColumns, random},
                             {Format::kQ4_0, 9, kColumns, random},
                             {Format::kQ6_K, 100, kColumns, random}};
  const Inputs inputs(Format::kQ4_0, kTokens, kColumns, random);
  std::vector<float> chunks = random_values(kTokens * 40, random);
  for (float& chunk : chunks) chunk = std::abs(chunk);
  const std::vector<float> bias = random_values(100, random);
  const std::vector<float> before = random_values(kTokens * kStride, random);
  const float scales[] = {1, -1.7F, 0.6F};
  std::vector<Written> written;
  for (const GpuPanelLimits* limits :
       {static_cast<const GpuPanelLimits*>(nullptr), &kSmall, &kLarge}) {
    Written& own = written.emplace_back(before);
    GpuProduct product;
    product.norm = {chunks.data(), 40, 37 * 32, 1e-5F};
    product.part_count = 3;
    for (size_t part = 0; part < 3; ++part) {
      product.parts[part] = {weights[part].matrix(),
                             part == 1 ? nullptr : bias.data(),
                             own.outputs[part].data(),
                             kStride,
                             part == 2,
                             scales[part]};
    }
    compute(product, inputs, limits);
  }
  EXPECT_EQ(written[0], written[1]) << "seed " << kSeed + 1;
  EXPECT_EQ(written[0], written[2]) << "seed " << kSeed + 1;
  EXPECT_EQ(written[0].outputs[0][(kFirst - 1) * kStride], before[(kFirst - 1) * kStride]);
  EXPECT_NE(written[0].outputs[2][20 * kStride + 99], before[20 * kStride + 99]);
}

TEST(GpuPanelFinish, norms_weigh_the_residual_and_add_up_its_squares) {
  RandomEngine random(kSeed + 2);
  constexpr size_t kRows = 117;  // a chunk of 21 at the end, in two panels of 16
  const Weights weights(Format::kQ8_0, kRows, kColumns, random);
  const Inputs inputs(Format::kQ8_0, kTokens, kColumns, random);
  const std::vector<float> weight = random_values(kRows, random);
  const std::vector<float> before = random_values(kTokens * kStride, random);
  std::vector<uint32_t> rows(kTokens, kGpuNoRow);
  rows[7] = 0;
  rows[20] = 1;
  rows[2] = 2;  // before kFirst
  std::vector<Written> written;
  for (size_t way = 0; way < 4; ++way) {
    Written& own = written.emplace_back(before);
    GpuProduct product;
    product.part_count = 1;
    product.parts[0] = {weights.matrix(), nullptr, own.outputs[0].data(), kStride, true};
    product.finish = GpuFinish::kNorms;
    product.norm_count = 2;
    for (size_t norm = 0; norm < 2; ++norm) {
      product.norms[norm] = {weight.data(), own.rows(norm), own.sums[norm].data(), 8,
                             norm == 0 ? nullptr : rows.data()};
    }
    if (way == 3) {
      compute_in_place(product, inputs);
    } else {
      compute(product, inputs, way == 0 ? nullptr : way == 1 ? &kSmall : &kLarge);
    }
  }
  EXPECT_EQ(written[0], written[1]) << "seed " << kSeed + 2;
  EXPECT_EQ(written[0], written[2]) << "seed " << kSeed + 2;
  EXPECT_EQ(written[0], written[3]) << "seed " << kSeed + 2;
  EXPECT_NE(written[0].f32[1][kStride], -3.0F);
  EXPECT_EQ(written[0].f32[1][2 * kStride], -3.0F);
}

TEST(GpuPanelFinish, a_gate_multiplies_the_second_part) {
  RandomEngine random(kSeed + 3);
  for (const size_t rows : {size_t{8}, size_t{40}, size_t{48}, size_t{64}, size_t{100}}) {
    SCOPED_TRACE(rows);
    const Weights gate(Format::kQ4_K, rows, kColumns, random);
    const Weights gated(Format::kQ4_K, rows, kColumns, random);
    const Inputs inputs(Format::kQ4_K, kTokens, kColumns, random);
    const std::vector<float> bias = random_values(rows, random);
    std::vector<Written> written;
    for (const GpuPanelLimits* limits :
         {static_cast<const GpuPanelLimits*>(nullptr), &kSmall, &kLarge}) {
      Written& own = written.emplace_back(std::vector<float>());
      GpuProduct product;
      product.part_count = 2;
      product.parts[0].matrix = gate.matrix();
      product.parts[1].matrix = gated.matrix();
      // Both have a bias, one of them has, or none.
      if (rows % 3 != 1) product.parts[0].bias = bias.data();
      if (rows % 16 != 0) product.parts[1].bias = bias.data();
      product.finish = GpuFinish::kGate;
      product.gate = own.rows(0);
      compute(product, inputs, limits);
    }
    EXPECT_EQ(written[0], written[1]) << "seed " << kSeed + 3;
    EXPECT_EQ(written[0], written[2]) << "seed " << kSeed + 3;
    EXPECT_NE(written[0].f32[0][20 * kStride + rows - 1], -3.0F);
    EXPECT_EQ(written[0].bf16[0][kFirst * kStride + (rows + 31) / 32 * 32 - 1] & 0x7FFFU,
              rows % 32 == 0 ? written[0].bf16[0][kFirst * kStride + rows - 1] & 0x7FFFU : 0U);
  }
}

}  // namespace
}  // namespace lockstep
