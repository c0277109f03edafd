#include "tests/emulators/gpu/cuda/matrix_product.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <vector>

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

// The columns, one after the other; or the rows.
std::vector<float> read_columns(const std::byte* memory, const MatrixLayout& layout) {
  std::vector<float> elements(layout.rows * layout.columns);
  for (size_t column = 0; column < layout.columns; ++column) {
    const size_t first = column * static_cast<size_t>(layout.stride);
    float* const to = elements.data() + column * layout.rows;
    for (size_t row = 0; row < layout.rows; ++row) to[row] = read(memory, layout.type, first + row);
  }
  return elements;
}
std::vector<float> read_rows(const std::byte* memory, const MatrixLayout& layout) {
  std::vector<float> elements(layout.rows * layout.columns);
  for (size_t row = 0; row < layout.rows; ++row) {
    for (size_t column = 0; column < layout.columns; ++column) {
      elements[row * layout.columns + column] =
          read(memory, layout.type, row + column * static_cast<size_t>(layout.stride));
    }
  }
  return elements;
}

// In as many sums side by side as vectors have space for.
float multiply(const float* left, const float* right, size_t count) {
  constexpr size_t kSums = 32;
  float sums[kSums] = {};
  size_t index = 0;
  for (; index + kSums <= count; index += kSums) {
    for (size_t sum = 0; sum < kSums; ++sum) sums[sum] += left[index + sum] * right[index + sum];
  }
  float all = 0;
  for (; index < count; ++index) all += left[index] * right[index];
  for (const float sum : sums) all += sum;
  return all;
}

}  // namespace

size_t MatrixLayout::bytes() const {
  if (rows == 0 || columns == 0) return 0;
  return (static_cast<size_t>(stride) * (columns - 1) + rows) * element_bytes(type);
}

std::string MatrixProduct::check() const {
  for (const MatrixLayout* layout : {&a, &b, &c, &d}) {
    if (layout->type != CUDA_R_16BF && layout->type != CUDA_R_32F) {
      return fmt::format("type {} is not emulated", static_cast<int>(layout->type));
    }
    if (layout->stride < 0 || static_cast<uint64_t>(layout->stride) < layout->rows) {
      return fmt::format("{} rows in columns {} apart", layout->rows, layout->stride);
    }
  }
  if (d.type != CUDA_R_32F || c.type != CUDA_R_32F) return "only sums in f32 are emulated";
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
  const size_t inner = transposed_a ? a.rows : a.columns;
  const std::vector<float> left =
      transposed_a ? read_columns(places[0], a) : read_rows(places[0], a);
  const std::vector<float> right =
      transposed_b ? read_rows(places[1], b) : read_columns(places[1], b);
  for (size_t column = 0; column < d.columns; ++column) {
    for (size_t row = 0; row < d.rows; ++row) {
      float value =
          alpha * multiply(left.data() + row * inner, right.data() + column * inner, inner);
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
