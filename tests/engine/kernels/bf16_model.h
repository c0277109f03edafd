// Products with bf16 activations by their definition in kernel_table.h, in plain double arithmetic:
// nothing here depends on how a processor fuses, or on its mode for small numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/random_weights.h"

namespace lockstep {

// One rounding to f32, nearest even, of x * y + z, x * y and x + y; numbers below the normal ones
// are zero, as operands and as results. x and y of a fma are bf16.
float model_fma(float x, float y, float z);
float model_multiply(float x, float y);
float model_add(float x, float y);

// y[t][r] of `rows` rows for the tokens of `activations` (form kBf16), row after row of a token.
std::vector<float> model_product(const PackedMatrix& matrix, const Activations& activations,
                                 size_t token_count);

// Whether both are the same bits, or both are no number.
bool same_number(float a, float b);

// A row of products to test: those of the kernel table (amx's needs a TileEmulation around it), and
// some that only tests have.
struct ProductRow {
  std::string name;
  const KernelTable* table;
  bool supported;
};
inline void PrintTo(const ProductRow& row, std::ostream* stream) {
  *stream << row.name;
}
std::vector<ProductRow> product_rows();

}  // namespace lockstep
