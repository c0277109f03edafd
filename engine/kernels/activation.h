// The forms in which activations enter a matrix product.
//
// kF32: columns floats.
// kQ8:  blocks of 32 elements, x ~ scale * q with q in [-127, 127]:
//       scale = max|x| / 127 (f32), q = x / scale rounded to nearest even; a block of zeros has
//       scale 0. A row is stored as
//         int8  q[columns]
//         float scale[columns / 32]
//         int32 sum[columns / 16]     sum of q over each half block, in order
//       each part starting at a multiple of 64 bytes.
//
// A row of either form takes activation_row_bytes(), a multiple of 64; what lies beyond the last
// column is zero (buffers are zeroed once; kernels never write there).
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/checked_math.h"
#include "engine/tensor/format.h"

namespace lockstep {

enum class ActivationForm : uint8_t { kF32, kQ8 };

// The form that a product with weights of this format consumes: kF32 for F32, F16 and BF16
// weights, kQ8 for the quantized formats.
ActivationForm activation_form(Format weights);

inline constexpr size_t kQ8BlockElements = 32;
inline constexpr size_t kQ8HalfElements = 16;

// Where the parts of a kQ8 row of `columns` elements (a multiple of 32) begin, in bytes.
struct Q8Row {
  explicit constexpr Q8Row(size_t columns)
      : scales(round_up<size_t>(columns, 64)),
        sums(scales + round_up<size_t>(columns / kQ8BlockElements * sizeof(float), 64)),
        size_bytes(sums + round_up<size_t>(columns / kQ8HalfElements * sizeof(int32_t), 64)) {}

  size_t scales;
  size_t sums;
  size_t size_bytes;
};

// Bytes from one row to the next.
size_t activation_row_bytes(ActivationForm form, size_t columns);

// Floats from one row to the next in a buffer of plain f32 activations: a multiple of 16.
constexpr size_t activation_stride(size_t columns) { return round_up<size_t>(columns, 16); }

}  // namespace lockstep
