// The forms in which activations enter a matrix product.
//
// kF32: columns floats.
// kQ8:  blocks of 32 elements, x ~ scale * q with q in [-127, 127]:
//       scale = max|x| / 127 (f32), q = x / scale rounded to nearest even. A block whose scale
//       would not be a normal number (all of it is below 2^-119) has scale 0 and q 0; a NaN becomes
//       -127. A row is stored as
//         int8  q[columns]
//         float scale[columns / 32]
//         int32 negated_sum[columns / 32]        - (sum of q over the block)
//         int32 negated_first_sum[columns / 32]  - (sum of q over the block's first 16)
//         float scaled_sum[columns / 32]         scale * float(negated_sum), rounded once
//       each part starting at a multiple of 64 bytes. The sums undo the offset of weights that are
//       multiplied as unsigned bytes, and stand for the minimums of the formats that have one.
// kBf16: bf16 values of the columns, rounded to nearest even.
// kBf16Dots: the same row as kBf16, for products that take its columns two by two.
//
// A row of any form takes activation_row_bytes(), a multiple of 64; of both forms of bf16 it is an
// odd one, so that rows side by side do not meet in one set of a cache. Of both forms of bf16 the
// columns up to the next multiple of 32 are zero; what else lies beyond the last column is
// anything.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/checked_math.h"
#include "engine/tensor/format.h"

namespace lockstep {

enum class ActivationForm : uint8_t { kF32, kQ8, kBf16, kBf16Dots };
inline constexpr size_t kActivationFormCount = 4;

// The form that a product with weights of this format consumes outside the arithmetics of bf16:
// kF32 for F32, F16 and BF16 weights, kQ8 for the quantized formats.
ActivationForm activation_form(Format weights);

inline constexpr size_t kQ8BlockElements = 32;

// The offsets of the parts of a kQ8 row, in bytes from its start; q is at 0.
struct Q8Row {
  size_t scales;
  size_t sums;
  size_t first_sums;
  size_t scaled_sums;
  size_t size_bytes;
};

// The offsets in a row of `columns` elements, a multiple of 32. Not inline: the files of the
// instruction sets may export nothing but their rows of the kernel table.
Q8Row q8_row(size_t columns);

// Bytes from one row to the next.
size_t activation_row_bytes(ActivationForm form, size_t columns);

// Floats from one row to the next in a buffer of plain f32 activations: a multiple of 16.
constexpr size_t activation_stride(size_t columns) {
  return round_up<size_t>(columns, 16);
}

}  // namespace lockstep
