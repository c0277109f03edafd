// Rows of a table for tokens on a GPU.
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "engine/kernels/gpu_rows.h"
#include "tests/engine/kernels/cuda/format_cases.h"
#include "tests/engine/kernels/cuda/gpu_cache.h"
#include "tests/engine/kernels/cuda/product_inputs.h"

namespace lockstep {
namespace {

constexpr size_t kSeed = 70;
constexpr float kLeftAlone = -5.0F;

class GpuEmbeddingOf : public testing::TestWithParam<Format> {
 protected:
  Format format() const { return GetParam(); }
  // No multiple of a tile where the format allows it.
  size_t columns() const {
    if (traits(format()).block_elements == 256) return 512;
    return traits(format()).block_elements == 32 ? 160 : 149;
  }
};

TEST_P(GpuEmbeddingOf, gives_the_tables_rows_bit_for_bit) {
  RandomEngine random(kSeed);
  constexpr size_t kRows = 53;
  constexpr size_t kRowBegin = 100;
  const Weights table(format(), kRows, columns(), random);
  GpuTestBatch batch({.tokens = 64, .sequences = 1, .pages = 1});
  batch.writer().add_sequence(std::vector<uint32_t>{0});
  std::vector<uint32_t> ids = {99, 100, 152, 153, 0, 117, 100, 4'000'000'000U};
  for (uint32_t row = 0; row < kRows; row += 3) ids.push_back(kRowBegin + row);
  for (uint32_t token = 0; token < ids.size(); ++token) {
    batch.writer().add_prompted(ids[token], token, 0);
  }
  batch.writer().end();
  const size_t stride = columns() + 3;
  for (const bool others_zero : {false, true}) {
    std::vector<float> output((ids.size() + 1) * stride, kLeftAlone);
    gpu_embed_rows(nullptr, {.batch = batch.batch(),
                             .table = table.matrix(),
                             .ids = batch.batch().token_ids,
                             .row_begin = kRowBegin,
                             .output = output.data(),
                             .output_stride = stride,
                             .grid_rows = 3,
                             .others_zero = others_zero});
    for (size_t token = 0; token <= ids.size(); ++token) {
      const bool is_there = token < ids.size();
      std::vector<float> expected(columns(), is_there && others_zero ? -0.0F : kLeftAlone);
      if (is_there && ids[token] >= kRowBegin && ids[token] - kRowBegin < kRows) {
        expected = table.row(ids[token] - kRowBegin);
        std::vector<float> unpacked(columns());
        unpack_gpu_row(table.matrix(), ids[token] - kRowBegin, unpacked.data());
        EXPECT_EQ(0, std::memcmp(unpacked.data(), expected.data(), columns() * sizeof(float)));
      }
      expected.resize(stride, kLeftAlone);
      for (size_t column = 0; column < stride; ++column) {
        ASSERT_EQ(std::bit_cast<uint32_t>(output[token * stride + column]),
                  std::bit_cast<uint32_t>(expected[column]))
            << "seed " << kSeed << ", token " << token << ", column " << column;
      }
    }
  }
}

// A token that the pass before has picked, among others.
TEST_P(GpuEmbeddingOf, looks_up_picks_of_rows) {
  RandomEngine random(kSeed);
  const Weights table(format(), /*rows=*/40, columns(), random);
  GpuTestBatch batch({.tokens = 8, .sequences = 1, .pages = 1});
  batch.writer().add_sequence(std::vector<uint32_t>{0});
  const std::vector<uint32_t> picks = {31, 5, 39};
  const std::vector<uint32_t> ids = {kGpuPickOfRow | 2, 7, kGpuPickOfRow | 0, kGpuPickOfRow | 1};
  const std::vector<uint32_t> expected = {39, 7, 31, 5};
  for (uint32_t token = 0; token < ids.size(); ++token) {
    batch.writer().add_generated(ids[token], token, 0);
  }
  batch.writer().end();
  std::vector<float> output(ids.size() * columns(), kLeftAlone);
  gpu_embed_rows(nullptr, {.batch = batch.batch(),
                           .table = table.matrix(),
                           .ids = batch.batch().token_ids,
                           .picks = picks.data(),
                           .output = output.data(),
                           .output_stride = columns(),
                           .grid_rows = 2});
  for (size_t token = 0; token < ids.size(); ++token) {
    const std::vector<float> row = table.row(expected[token]);
    EXPECT_EQ(0,
              std::memcmp(output.data() + token * columns(), row.data(), columns() * sizeof(float)))
        << "token " << token;
  }
}

// Tables of positions and of segments.
TEST_P(GpuEmbeddingOf, looks_up_other_numbers_of_tokens) {
  RandomEngine random(kSeed);
  const Weights table(format(), /*rows=*/40, columns(), random);
  GpuTestBatch batch({.tokens = 8, .sequences = 1, .pages = 1, .segments = 8});
  batch.writer().add_sequence(std::vector<uint32_t>{0});
  const std::vector<uint32_t> positions = {3, 0, 38};
  const std::vector<uint32_t> segments = {1, 0, 1};
  for (size_t token = 0; token < positions.size(); ++token) {
    batch.writer().add_prompted(20, positions[token], 0, segments[token]);
  }
  batch.writer().end();
  for (const bool is_position : {true, false}) {
    std::vector<float> output(positions.size() * columns(), kLeftAlone);
    gpu_embed_rows(nullptr, {.batch = batch.batch(),
                             .table = table.matrix(),
                             .ids = is_position ? batch.batch().positions : batch.batch().segments,
                             .output = output.data(),
                             .output_stride = columns(),
                             .grid_rows = 2});
    for (size_t token = 0; token < positions.size(); ++token) {
      const std::vector<float> row = table.row((is_position ? positions : segments)[token]);
      EXPECT_EQ(
          0, std::memcmp(output.data() + token * columns(), row.data(), columns() * sizeof(float)))
          << "token " << token;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, GpuEmbeddingOf, testing::ValuesIn(every_format()),
                         name_of_format);

}  // namespace
}  // namespace lockstep
