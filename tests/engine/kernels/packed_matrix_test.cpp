#include "engine/kernels/packed_matrix.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/engine/kernels/random_weights.h"

namespace lockstep {

namespace {

size_t some_columns(Format format) {
  return 3 * traits(format).block_elements;
}

TEST(PackedMatrix, unpacking_gives_the_bits_of_dequantizing_the_file) {
  RandomEngine random(11);
  for (const FormatTraits& format : all_formats()) {
    for (size_t rows = 1; rows <= 37; ++rows) {
      const size_t columns = some_columns(format.format);
      const RandomMatrix matrix(format.format, rows, columns, random);
      for (size_t row = 0; row < rows; ++row) {
        std::vector<float> values(columns);
        unpack_row(matrix.packed(), row, values.data());
        ASSERT_EQ(
            0, std::memcmp(values.data(), matrix.dequantized(row).data(), columns * sizeof(float)))
            << format.name << " row " << row << " of " << rows;
      }
    }
  }
}

TEST(PackedMatrix, a_panel_has_exactly_the_files_bytes_but_for_formats_that_are_encoded) {
  for (const FormatTraits& format : all_formats()) {
    const size_t columns = some_columns(format.format);
    const size_t file_bytes = 16 * row_bytes(format.format, columns);
    if (format.packed.encode == nullptr) {
      EXPECT_EQ(panel_bytes(format.format, columns), file_bytes) << format.name;
    } else {
      EXPECT_GE(panel_bytes(format.format, columns), file_bytes) << format.name;
      EXPECT_EQ(panel_bytes(format.format, columns),
                16 * columns / format.packed.elements * format.packed.bytes)
          << format.name;
    }
  }
}

TEST(PackedMatrix, rows_beyond_the_last_are_zero) {
  RandomEngine random(12);
  for (const FormatTraits& format : all_formats()) {
    const size_t columns = some_columns(format.format);
    const std::vector<std::byte> rows = random_rows(format.format, 5, columns, random);
    std::vector<std::byte> panel(panel_bytes(format.format, columns), std::byte{0xFF});
    pack_panel(format.format, columns, rows.data(), 5, panel.data());
    // As a view of 16 rows, the padding reads as rows of a file that is all zero.
    const PackedMatrix view = {
        .format = format.format, .rows = 16, .columns = columns, .panels = panel.data()};
    const std::vector<std::byte> zero_row(row_bytes(format.format, columns));
    std::vector<float> expected(columns);
    format.dequantize(zero_row.data(), columns, expected.data());
    for (size_t row = 5; row < 16; ++row) {
      std::vector<float> values(columns);
      unpack_row(view, row, values.data());
      EXPECT_EQ(values, expected) << format.name << " row " << row;
    }
  }
}

// Whole panels are packed by vectors, parts of them unit by unit: the one is the other's reference.
TEST(PackedMatrix, a_panel_has_the_same_bytes_however_its_rows_are_cut) {
  RandomEngine random(13);
  for (const FormatTraits& format : all_formats()) {
    for (const size_t blocks : {1U, 2U, 3U, 5U, 8U, 19U, 36U, 67U}) {
      const size_t columns = blocks * format.block_elements;
      const size_t row_size = row_bytes(format.format, columns);
      const std::vector<std::byte> rows = random_rows(format.format, kPanelRows, columns, random);
      for (size_t count = 1; count <= kPanelRows; ++count) {
        std::vector<std::byte> whole(panel_bytes(format.format, columns), std::byte{0xFF});
        std::vector<std::byte> row_by_row(whole.size(), std::byte{0xFF});
        pack_panel(format.format, columns, rows.data(), count, whole.data());
        for (size_t row = 0; row < count; ++row) {
          pack_lanes(format.format, columns, rows.data() + row * row_size, row_size, row, 1,
                     row_by_row.data());
        }
        clear_lanes(format.format, columns, count, row_by_row.data());
        ASSERT_EQ(whole, row_by_row) << format.name << ", " << count << " rows of " << columns;
      }
    }
  }
}

TEST(PackedMatrix, a_slice_of_columns_is_packed_as_if_there_were_no_others) {
  RandomEngine random(14);
  for (const FormatTraits& format : all_formats()) {
    const size_t block = format.block_elements;
    const size_t columns = 9 * block;
    const size_t stride = row_bytes(format.format, columns);
    const std::vector<std::byte> rows = random_rows(format.format, kPanelRows, columns, random);
    for (size_t begin = 0; begin < 9; ++begin) {
      const size_t width = (9 - begin) * block;
      const size_t width_bytes = row_bytes(format.format, width);
      std::vector<std::byte> narrow;
      for (size_t row = 0; row < kPanelRows; ++row) {
        const auto first = rows.begin() + static_cast<ptrdiff_t>((row + 1) * stride - width_bytes);
        narrow.insert(narrow.end(), first, first + static_cast<ptrdiff_t>(width_bytes));
      }
      std::vector<std::byte> expected(panel_bytes(format.format, width));
      std::vector<std::byte> panel(expected.size());
      pack_panel(format.format, width, narrow.data(), kPanelRows, expected.data());
      pack_lanes(format.format, width, rows.data() + begin * format.block_bytes, stride, 0,
                 kPanelRows, panel.data());
      ASSERT_EQ(panel, expected) << format.name << " from block " << begin;
    }
  }
}

// The places that the kernels and packed_matrix.cpp's comment agree on, told apart by their bytes.
TEST(PackedMatrix, a_lane_of_four_bytes_is_four_columns_of_a_row) {
  std::vector<std::byte> rows(2 * row_bytes(Format::kQ8_0, 32));
  for (size_t row = 0; row < 2; ++row) {
    for (size_t k = 0; k < 32; ++k) {
      rows[row * 34 + 2 + k] = static_cast<std::byte>(100 * row + k);
    }
  }
  std::vector<std::byte> panel(panel_bytes(Format::kQ8_0, 32));
  pack_panel(Format::kQ8_0, 32, rows.data(), 2, panel.data());
  for (size_t row = 0; row < 2; ++row) {
    for (size_t k = 0; k < 32; ++k) {
      EXPECT_EQ(panel[k / 4 * 64 + row * 4 + k % 4], static_cast<std::byte>(100 * row + k));
    }
  }
}

}  // namespace

}  // namespace lockstep
