// A row of the kernel table, from the algorithms as one instruction set's file has compiled them.
#pragma once

#include "engine/kernels/cpu/append_kv.inl.h"
#include "engine/kernels/cpu/attention.inl.h"
#include "engine/kernels/cpu/elementwise.inl.h"
#include "engine/kernels/cpu/matmul.inl.h"
#include "engine/kernels/cpu/matmul_bf16.inl.h"
#include "engine/kernels/cpu/matmul_bf16_dots.inl.h"
#include "engine/kernels/cpu/matmul_floats.inl.h"
#include "engine/kernels/cpu/quantize.inl.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable make_row(std::string_view name) {
  return {
      .name = name,
      .has_tiles = false,
      .has_bf16_dots = false,
      .matmul =
          {
              matmul_floats<F32Column>,
              matmul_floats<F16Column>,
              matmul_floats<Bf16Column>,
              matmul_quantized<Q8_0Tile>,
              matmul_quantized<Q4_0Tile>,
              matmul_quantized<Q4_1Tile>,
              matmul_quantized<Q5_0Tile>,
              matmul_quantized<Q5_1Tile>,
              matmul_quantized<Q4_KTile>,
              matmul_quantized<Q5_KTile>,
              matmul_quantized<Q6_KTile>,
          },
      .matmul_bf16 =
          {
              nullptr,
              kMatmulBf16<F16Weights>,
              kMatmulBf16<Bf16Weights>,
              kMatmulBf16<QuantizedWeights<Q8_0Tile>>,
              kMatmulBf16<QuantizedWeights<Q4_0Tile>>,
              kMatmulBf16<QuantizedWeights<Q4_1Tile>>,
              kMatmulBf16<QuantizedWeights<Q5_0Tile>>,
              kMatmulBf16<QuantizedWeights<Q5_1Tile>>,
              kMatmulBf16<QuantizedWeights<Q4_KTile>>,
              kMatmulBf16<QuantizedWeights<Q5_KTile>>,
              kMatmulBf16<QuantizedWeights<Q6_KTile>>,
          },
      .matmul_bf16_dots = {nullptr, nullptr, kMatmulBf16Dots},
      .gated_bf16 = {},
      .to_bf16 = to_bf16,
      .quantize = quantize,
      .rms_norm = rms_norm,
      .silu_multiply = silu_multiply,
      .weigh = weigh,
      .attend = attend,
      .attend_chunk = attend_chunk,
      .merge_chunks = merge_chunks,
      .attend_bf16 = nullptr,
      .append_kv = append_kv,
  };
}

}  // namespace
}  // namespace lockstep
