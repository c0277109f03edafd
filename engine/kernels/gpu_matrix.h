// Weights as GPUs read them: tiles of 16 rows and 64 columns in the order in which the lanes of a
// warp hold the A operand of a tile product, so that a lane reads its part of a tile by loads of 16
// bytes, 512 contiguous ones of a warp: one load for 4 bits, two for 8, four for 16; of 2 bits by
// one of 8 bytes.
//
// A matrix is planes, one after the other, each [panel of 16 rows][unit of columns]: the quants (4
// bits or more of each weight, of Q2_K and Q3_K 2), what bits are left of them, the scales and
// minimums as the file has them, and the halves of Q6_K and Q2_K. A unit is 128 columns: two tiles,
// for which a warp reckons places once. Of weights that are no quants it is 64, of Q4_K and Q5_K
// the 256 of a block. Exactly the file's bits per weight, but that rows are padded to 16 and
// columns to whole units, with zeros, and that either unit of a block of Q3_K has its half: 3.5
// bits instead of 3.44. The places are in gpu_tile.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/tensor/format.h"

namespace lockstep {

// A view; the memory's owner owns the bytes. `planes` begins at a multiple of 256.
struct GpuMatrix {
  Format format = Format::kF32;
  size_t rows = 0;
  size_t columns = 0;
  const std::byte* planes = nullptr;
};

size_t gpu_matrix_bytes(Format format, size_t rows, size_t columns);

// `row_count` rows of a matrix, or of some of its columns, as the file stores them: each begins
// `stride_bytes` behind the one before, at a block. They are the matrix's rows from `row_begin` on,
// a multiple of 16; they end at one, or at the matrix's end.
struct GpuPacking {
  Format format = Format::kF32;
  size_t rows = 0;  // of the whole matrix
  size_t columns = 0;
  const std::byte* source = nullptr;
  size_t stride_bytes = 0;
  size_t row_begin = 0;
  size_t row_count = 0;
  std::byte* planes = nullptr;
};

// On the host ...
void pack_gpu_rows(const GpuPacking& packing);
// ... and on the GPU whose stream (a cudaStream_t) it is; returns before it is done.
void gpu_pack_rows(void* stream, const GpuPacking& packing);

// Row `row` of a matrix in the host's memory as `columns` floats: bit for bit what dequantizing the
// file's row gives. For tests.
void unpack_gpu_row(const GpuMatrix& matrix, size_t row, float* values);

}  // namespace lockstep
