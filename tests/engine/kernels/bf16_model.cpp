#include "tests/engine/kernels/bf16_model.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/kernels/kernel_choice.h"
#include "tests/engine/kernels/software_tiles.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {

namespace {

float flushed(float x) {
  return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0F, x) : x;
}

// The number that was rounded to `value`, to odd, rounded on to f32. A result is small if it is
// after rounding with no bound on exponents: below 2^-126 less half a step, which is 2^-151.
float rounded(double value) {
  if (std::abs(value) < std::ldexp(1.0, -126) - std::ldexp(1.0, -151)) {
    return static_cast<float>(std::copysign(0.0, value));
  }
  return static_cast<float>(value);
}

// a + b rounded to odd: of the two numbers around an inexact sum, the one whose last bit is set. It
// has bits enough that rounding it on is rounding the sum.
double sum_to_odd(double a, double b) {
  const double sum = a + b;
  if (!std::isfinite(sum)) return sum;
  const double b_part = sum - a;
  const double error = (a - (sum - b_part)) + (b - b_part);
  if (error == 0 || std::bit_cast<uint64_t>(sum) % 2 == 1) return sum;
  return std::nextafter(sum, std::copysign(std::numeric_limits<double>::infinity(), error));
}

// The numbers that stand for each weight of a row, parts[part][column], padded to blocks of 32.
std::vector<std::vector<float>> weight_parts(const PackedMatrix& matrix, size_t row,
                                             size_t padded) {
  std::vector<float> values(padded);
  unpack_row(matrix, row, values.data());
  if (traits(matrix.format).block_elements > 1) {
    for (float& value : values) value += 0.0F;  // no zero stays negative
  }
  std::vector<std::vector<float>> parts(1, std::vector<float>(padded));
  for (size_t k = 0; k < padded; ++k) parts[0][k] = bf16_to_float(float_to_bf16(values[k]));
  if (matrix.format != Format::kF16) return parts;
  parts.emplace_back(padded);
  for (size_t k = 0; k < padded; ++k) {
    parts[1][k] = bf16_to_float(float_to_bf16(values[k] - parts[0][k]));
  }
  return parts;
}

}  // namespace

float model_fma(float x, float y, float z) {
  const double product = static_cast<double>(flushed(x)) * static_cast<double>(flushed(y));
  return rounded(sum_to_odd(product, static_cast<double>(flushed(z))));
}

float model_multiply(float x, float y) {
  return rounded(static_cast<double>(flushed(x)) * static_cast<double>(flushed(y)));
}

float model_add(float x, float y) {
  return rounded(sum_to_odd(static_cast<double>(flushed(x)), static_cast<double>(flushed(y))));
}

std::vector<float> model_product(const PackedMatrix& matrix, const Activations& activations,
                                 size_t token_count) {
  const size_t padded = round_up<size_t>(matrix.columns, 32);
  std::vector<std::vector<float>> inputs(token_count, std::vector<float>(padded));
  for (size_t token = 0; token < token_count; ++token) {
    for (size_t k = 0; k < matrix.columns; ++k) {
      uint16_t bits = 0;
      std::memcpy(&bits, activations.row(token) + k * sizeof bits, sizeof bits);
      inputs[token][k] = bf16_to_float(bits);
    }
  }
  std::vector<float> product(token_count * matrix.rows);
  for (size_t row = 0; row < matrix.rows; ++row) {
    const std::vector<std::vector<float>> parts = weight_parts(matrix, row, padded);
    for (size_t token = 0; token < token_count; ++token) {
      float sum = 0;
      for (size_t block = 0; block < padded; block += 32) {
        for (const std::vector<float>& weights : parts) {
          float even = 0;
          float odd = 0;
          for (size_t k = block; k < block + 32; k += 2) {
            even = model_fma(weights[k], inputs[token][k], even);
            odd = model_fma(weights[k + 1], inputs[token][k + 1], odd);
          }
          sum = model_add(sum, model_add(even, odd));
        }
      }
      product[token * matrix.rows + row] = sum;
    }
  }
  return product;
}

bool same_number(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof a) == 0;
}

std::vector<ProductRow> product_rows() {
  std::vector<ProductRow> rows;
  for (const KernelTable* table : all_kernel_tables()) {
    rows.push_back({std::string(table->name), table, runs_here(*table)});
  }
  for (const KernelTable* table : {&software_tiles_scalar(), &software_tiles_avx512()}) {
    const bool supported = table == &software_tiles_scalar() || has_vectors_of_amx();
    rows.push_back({std::string(table->name), table, supported});
  }
  return rows;
}

}  // namespace lockstep
