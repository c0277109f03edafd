// Weights as GPUs read them: what was packed comes out again, bit for bit, whichever of them packed
// it.
#include "engine/kernels/gpu_matrix.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/engine/kernels/cuda/format_cases.h"
#include "tests/engine/kernels/random_weights.h"

namespace lockstep {
namespace {

constexpr size_t kSeed = 20;

class GpuMatrixOf : public testing::TestWithParam<Format> {
 protected:
  Format format() const { return GetParam(); }
  // More than a tile, no multiple of one where the format allows it.
  size_t columns() const { return traits(format()).block_elements == 256 ? 512 : 160; }
};

TEST_P(GpuMatrixOf, gives_the_files_values_bit_for_bit) {
  RandomEngine random(kSeed);
  for (const size_t rows : {size_t{1}, size_t{16}, size_t{37}}) {
    const RandomMatrix matrix(format(), rows, columns(), random);
    AlignedBuffer planes(gpu_matrix_bytes(format(), rows, columns()));
    const size_t stride = row_bytes(format(), columns());
    std::vector<std::byte> file;
    for (size_t row = 0; row < rows; ++row) {
      const std::vector<std::byte> bytes = matrix.file_row(row);
      file.insert(file.end(), bytes.begin(), bytes.end());
    }
    pack_gpu_rows({format(), rows, columns(), file.data(), stride, 0, rows, planes.data()});
    for (size_t row = 0; row < rows; ++row) {
      const std::vector<float> expected = matrix.dequantized(row);
      std::vector<float> values(columns());
      unpack_gpu_row({format(), rows, columns(), planes.data()}, row, values.data());
      ASSERT_EQ(0, std::memcmp(values.data(), expected.data(), columns() * sizeof(float)))
          << "seed " << kSeed << ", row " << row << " of " << rows;
    }
  }
}

TEST_P(GpuMatrixOf, takes_no_more_bits_than_the_file) {
  const size_t columns = 1024;
  // Either half of a block of Q3_K has the block's number of 16 bits.
  const size_t repeated = format() == Format::kQ3_K ? 2 * columns / 256 : 0;
  const size_t bytes = 64 * (row_bytes(format(), columns) + repeated);
  EXPECT_EQ(gpu_matrix_bytes(format(), 64, columns), bytes);
  // Padding.
  EXPECT_EQ(gpu_matrix_bytes(format(), 50, columns), bytes);
}

TEST_P(GpuMatrixOf, of_a_slice_of_rows_and_columns_is_the_same_from_the_gpu) {
  RandomEngine random(kSeed + 1);
  const size_t block = traits(format()).block_elements;
  const size_t first = block == 1 ? 33 : block;
  const size_t stride = row_bytes(format(), columns() + first);
  constexpr size_t kRows = 53;
  const std::vector<std::byte> file = random_rows(format(), kRows, columns() + first, random);
  const size_t bytes = gpu_matrix_bytes(format(), kRows, columns());
  AlignedBuffer whole(bytes);
  AlignedBuffer parts(bytes);
  std::memset(parts.data(), 0x5A, bytes);
  const std::byte* slice = file.data() + row_bytes(format(), first);
  pack_gpu_rows({format(), kRows, columns(), slice, stride, 0, kRows, whole.data()});
  for (const size_t begin : {size_t{32}, size_t{0}}) {
    const size_t end = begin == 0 ? 32 : kRows;
    gpu_pack_rows(nullptr, {format(), kRows, columns(), slice + begin * stride, stride, begin,
                            end - begin, parts.data()});
  }
  EXPECT_EQ(0, std::memcmp(whole.data(), parts.data(), bytes)) << "seed " << kSeed + 1;
  for (size_t row = 0; row < kRows; row += 13) {
    std::vector<float> expected(columns());
    std::vector<float> values(columns());
    traits(format()).dequantize(slice + row * stride, columns(), expected.data());
    unpack_gpu_row({format(), kRows, columns(), whole.data()}, row, values.data());
    ASSERT_EQ(0, std::memcmp(values.data(), expected.data(), columns() * sizeof(float)));
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, GpuMatrixOf, testing::ValuesIn(every_format()), name_of_format);

}  // namespace
}  // namespace lockstep
