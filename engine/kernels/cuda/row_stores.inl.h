// How kernels write rows of activations (GpuRows). Included after gpu_code.h.
#pragma once

#include "engine/kernels/gpu_rows.h"

namespace lockstep {
namespace {

GPU_FUNCTION void store_row(const GpuRows& rows, size_t row, size_t column, float value) {
  if (rows.bf16 != nullptr) rows.bf16[row * rows.bf16_stride + column] = to_bf16(value);
  if (rows.f32 != nullptr) rows.f32[row * rows.f32_stride + column] = value;
}
GPU_FUNCTION void store_padding(const GpuRows& rows, size_t row, size_t column) {
  if (rows.bf16 != nullptr) rows.bf16[row * rows.bf16_stride + column] = 0;
}

}  // namespace
}  // namespace lockstep
