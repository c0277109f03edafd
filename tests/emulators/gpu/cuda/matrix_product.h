// D = alpha * op(A) * op(B) + beta * C on the host, for the emulated cuBLASLt.
#pragma once

#include <library_types.h>

#include <array>
#include <cstdint>
#include <string>

#include "tests/emulators/gpu/cuda/allocations.h"

namespace lockstep::ptx {

// In column order: element (row, column) is the (row + column * stride)-th. bf16 or f32.
struct MatrixLayout {
  cudaDataType_t type;
  uint64_t rows;
  uint64_t columns;
  int64_t stride;

  // From its first element to its last.
  size_t bytes() const;
};

struct MatrixProduct {
  MatrixLayout a, b, c, d;
  bool transposed_a = false;
  bool transposed_b = false;
  float alpha = 1;
  float beta = 0;
  std::array<uint64_t, 4> addresses = {};  // of A, B, C and D
  uint64_t workspace = 0;                  // which is overwritten
  uint64_t workspace_bytes = 0;

  // Says why the layouts cannot be multiplied; empty: they can.
  std::string check() const;
  // Sums in f32, in an order that is the same for all sizes. As a kernel of that GPU: fails, saying
  // why, where that may not touch an operand; empty: it did not fail.
  std::string compute(const Allocations& allocations, int gpu) const;
};

}  // namespace lockstep::ptx
