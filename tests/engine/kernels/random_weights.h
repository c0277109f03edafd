// Random but valid weights of every format, and activations, for tests and benchmarks of kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <random>
#include <span>
#include <vector>

#include "engine/kernels/activation.h"
#include "engine/kernels/kernel_table.h"
#include "engine/kernels/packed_matrix.h"
#include "engine/tensor/format.h"

namespace lockstep {

// A zeroed buffer that begins at a multiple of 64 bytes, as kernels want theirs.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(size_t bytes);

  std::byte* data() { return storage_.data() + offset_; }
  const std::byte* data() const { return storage_.data() + offset_; }
  float* floats() { return reinterpret_cast<float*>(data()); }
  const float* floats() const { return reinterpret_cast<const float*>(data()); }

 private:
  std::vector<std::byte> storage_;
  size_t offset_ = 0;
};

using RandomEngine = std::mt19937_64;

// Rows as a file stores them: random quants, scales of both signs, zero among them, of magnitudes
// around 2^-6.
std::vector<std::byte> random_rows(Format format, size_t rows, size_t columns,
                                   RandomEngine& random);

// Replaces every scale and minimum in rows of a format that has them; of MXFP4 and NVFP4 by one
// that they can express.
void set_halves(Format format, float value, std::span<std::byte> rows);
void set_halves(Format format, const std::function<float()>& value, std::span<std::byte> rows);

// A matrix of such rows, packed, and the rows themselves.
class RandomMatrix {
 public:
  RandomMatrix(Format format, size_t rows, size_t columns, RandomEngine& random);
  // Takes rows as the file stores them.
  RandomMatrix(Format format, size_t rows, size_t columns, std::vector<std::byte> file_rows);

  const PackedMatrix& packed() const { return packed_; }
  // A row's bytes as the file stores them, and the values they stand for.
  std::vector<std::byte> file_row(size_t row) const;
  std::vector<float> dequantized(size_t row) const;

 private:
  std::vector<std::byte> file_rows_;
  AlignedBuffer panels_;
  PackedMatrix packed_;
};

// `count` values of a normal distribution, some of them large.
std::vector<float> random_values(size_t count, RandomEngine& random);

// Rows of activations in a form, or in the one that a format consumes.
class Activations {
 public:
  // `values` holds token_count rows of `columns`; brought into the form by `table`.
  Activations(const KernelTable& table, ActivationForm form, std::span<const float> values,
              size_t token_count, size_t columns);
  Activations(const KernelTable& table, Format weights, std::span<const float> values,
              size_t token_count, size_t columns);

  const std::byte* row(size_t token) const { return rows_.data() + token * stride_bytes_; }
  size_t stride_bytes() const { return stride_bytes_; }

 private:
  size_t stride_bytes_;
  AlignedBuffer rows_;
};

}  // namespace lockstep
