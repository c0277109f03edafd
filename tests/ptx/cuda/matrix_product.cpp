#include "tests/ptx/cuda/matrix_product.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <vector>

#include "engine/tensor/format.h"

namespace lockstep::ptx {
namespace {

constexpr int kOverwritten = 0xFF;

size_t element_bytes(cudaDataType_t type) {
  return type == CUDA_R_16BF ? sizeof(uint16_t) : sizeof(float);
}

float read(const std::byte* memory, cudaDataType_t type, size_t index) {
  uint32_t bits = 0;
  if (type == CUDA_R_16BF) {
    std::memcpy(&bits, memory + index * sizeof(uint16_t), sizeof(uint16_t));
    bits <<= 16U;
  } else {
    std::memcpy(&bits, memory + index * sizeof(float), sizeof(float));
  }
  return std::bit_cast<float>(bits);
}

// Element (row, column) at row * columns + column, after op().
std::vector<float> read_all(const std::byte* memory, const MatrixLayout& layout, bool transposed) {
  std::vector<float> elements(layout.rows * layout.columns);
  const size_t columns = transposed ? layout.rows : layout.columns;
  for (size_t column = 0; column < layout.columns; ++column) {
    for (size_t row = 0; row < layout.rows; ++row) {
      elements[transposed ? column * columns + row : row * columns + column] =
          read(memory, layout.type, row + column * static_cast<size_t>(layout.stride));
    }
  }
  return elements;
}

}  // namespace

size_t MatrixLayout::bytes() const {
  if (rows == 0 || columns == 0) return 0;
  return (static_cast<size_t>(stride) * (columns - 1) + rows) * element_bytes(type);
}

std::string MatrixProduct::check() const {
  for (const MatrixLayout* layout : {&a, &b, &c, &d}) {
    if (layout->type != CUDA_R_16BF && layout->type != CUDA_R_32F) {
      return fmt::format("type {} is not made up", static_cast<int>(layout->type));
    }
    if (layout->stride < 0 || static_cast<uint64_t>(layout->stride) < layout->rows) {
      return fmt::format("{} rows in columns {} apart", layout->rows, layout->stride);
    }
  }
  if (d.type != CUDA_R_32F || c.type != CUDA_R_32F) return "only sums in f32 are made up";
  const uint64_t inner = transposed_a ? a.rows : a.columns;
  if (d.rows != (transposed_a ? a.columns : a.rows) ||
      inner != (transposed_b ? b.columns : b.rows) ||
      d.columns != (transposed_b ? b.rows : b.columns) || c.rows != d.rows ||
      c.columns != d.columns) {
    return "the matrices' sizes do not fit";
  }
  return {};
}

std::string MatrixProduct::compute(const Allocations& allocations, int gpu) const {
  std::byte* places[4];
  const MatrixLayout* const layouts[4] = {&a, &b, &c, &d};
  for (size_t index = 0; index < 4; ++index) {
    std::string why;
    const auto found = allocations.find(gpu, addresses[index], layouts[index]->bytes(), why);
    if (!found) return fmt::format("cuBLASLt's product: operand {}: {}", "ABCD"[index], why);
    places[index] = Allocations::place(*found, addresses[index]);
  }
  if (workspace_bytes > 0) {
    std::string why;
    const auto found = allocations.find(gpu, workspace, workspace_bytes, why);
    if (!found) return fmt::format("cuBLASLt's product: its workspace: {}", why);
    std::memset(Allocations::place(*found, workspace), kOverwritten, workspace_bytes);
  }
  const size_t rows = d.rows;
  const size_t inner = transposed_a ? a.rows : a.columns;
  // Both with the inner dimension outside, so that a loop over rows reads what lies side by side.
  const std::vector<float> left = read_all(places[0], a, !transposed_a);
  const std::vector<float> right = read_all(places[1], b, !transposed_b);
  std::vector<float> sums(rows);
  for (size_t column = 0; column < d.columns; ++column) {
    std::fill(sums.begin(), sums.end(), 0.0F);
    for (size_t index = 0; index < inner; ++index) {
      const float factor = right[column * inner + index];
      const float* const addends = left.data() + index * rows;
      for (size_t row = 0; row < rows; ++row) sums[row] += addends[row] * factor;
    }
    for (size_t row = 0; row < rows; ++row) {
      float value = alpha * sums[row];
      if (beta != 0) {
        value += beta * read(places[2], c.type, row + column * static_cast<size_t>(c.stride));
      }
      std::memcpy(places[3] + (row + column * static_cast<size_t>(d.stride)) * sizeof(float),
                  &value, sizeof(value));
    }
  }
  return {};
}

}  // namespace lockstep::ptx
