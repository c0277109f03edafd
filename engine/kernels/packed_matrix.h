// Weights as the kernels read them: rows in panels of 16, interleaved so that a vector lane owns a
// row. No padding but for the rows of the last panel: the bits per weight that the format's
// PackedBlock has, which mostly are the file's. One copy serves prompts and generation, and every
// instruction set.
//
// A panel holds its 16 rows K-major, block after block:
//   F32, F16, BF16   for each k: 16 values, row 0 to 15
//   quantized        for each block of the format (32 or 256 elements) one tile: the bytes of the
//                    16 rows' blocks rearranged, as packed_matrix.cpp says
// Rows beyond the last are zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/tensor/format.h"

namespace lockstep {

inline constexpr size_t kPanelRows = 16;

// A view of a packed matrix; the arena's owner owns the bytes. `panels` is 64-byte aligned.
struct PackedMatrix {
  Format format = Format::kF32;
  size_t rows = 0;
  size_t columns = 0;
  const std::byte* panels = nullptr;

  size_t panel_count() const { return (rows + kPanelRows - 1) / kPanelRows; }
};

// Bytes of one panel: kPanelRows * packed_row_bytes(format, columns).
size_t panel_bytes(Format format, size_t columns);

// Packs one panel from `row_count` (1 to 16) consecutive rows as the file stores them.
// `panel` gets panel_bytes().
void pack_panel(Format format, size_t columns, const std::byte* rows, size_t row_count,
                std::byte* panel);

// The same for a slice of columns and a part of a panel: `row_count` rows that begin `stride_bytes`
// apart at `rows` become the panel's rows from `lane` on; its other rows stay as they are, so that
// several threads may each write some.
void pack_lanes(Format format, size_t columns, const std::byte* rows, size_t stride_bytes,
                size_t lane, size_t row_count, std::byte* panel);

// Zeroes a panel's rows from `lane` on, which may be all or none of them.
void clear_lanes(Format format, size_t columns, size_t lane, std::byte* panel);

// Writes row `row` of the matrix as `columns` floats: the same values, bit for bit, as dequantizing
// the row as the file stores it. For embedding rows and for tests.
void unpack_row(const PackedMatrix& matrix, size_t row, float* values);

// Raised whenever the same weights, packed, become other bytes: those that an earlier version of
// the program packed and left in memory are then packed anew. A test holds it to the bytes.
inline constexpr unsigned kPackingVersion = 3;

}  // namespace lockstep
