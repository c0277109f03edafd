// A row of the kernel table, from the algorithms as one instruction set's file has compiled them.
#pragma once

#include "engine/kernels/cpu/activations.inl.h"
#include "engine/kernels/cpu/append_kv.inl.h"
#include "engine/kernels/cpu/attention.inl.h"
#include "engine/kernels/cpu/convolution.inl.h"
#include "engine/kernels/cpu/delta_net.inl.h"
#include "engine/kernels/cpu/elementwise.inl.h"
#include "engine/kernels/cpu/hadamard.inl.h"
#include "engine/kernels/cpu/matmul_bf16.inl.h"
#include "engine/kernels/cpu/matmul_bf16_dots.inl.h"
#include "engine/kernels/cpu/matmul_floats.inl.h"
#include "engine/kernels/cpu/matmul_strips.inl.h"
#include "engine/kernels/cpu/quantize.inl.h"
#include "engine/kernels/cpu/scan.inl.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

// The product of a format's weights with activations of the form that they take.
template <typename F>
constexpr MatmulKernel own_product() {
  if constexpr (std::is_same_v<F, F32>) {
    return matmul_floats<F32Column>;
  } else if constexpr (std::is_same_v<F, F16>) {
    return matmul_floats<F16Column>;
  } else if constexpr (std::is_same_v<F, Bf16>) {
    return matmul_floats<Bf16Column>;
  } else if constexpr (General<TileOf<F>>) {
    return matmul_general<TileOf<F>>;
  } else {
    return matmul_quantized<TileOf<F>>;
  }
}

// The same with activations of form kBf16; none for F32.
template <typename F>
constexpr MatmulKernel bf16_product() {
  if constexpr (std::is_same_v<F, F32>) {
    return nullptr;
  } else {
    return kMatmulBf16<WeightsOfFormat<F>>;
  }
}

constexpr KernelTable make_row(std::string_view name) {
  return {
      .name = name,
      .has_tiles = false,
      .has_bf16_dots = false,
      .matmul = each_format<MatmulKernel>([]<typename F>() { return own_product<F>(); }),
      .matmul_bf16 = each_format<MatmulKernel>([]<typename F>() { return bf16_product<F>(); }),
      .matmul_bf16_dots = {nullptr, nullptr, kMatmulBf16Dots},
      .gated_bf16 = {},
      .to_bf16 = to_bf16,
      .quantize = quantize,
      .rms_norm = rms_norm,
      .weigh = weigh,
      .sum_squares = sum_squares,
      .sum_moments = sum_moments,
      .activate = {activate<Silu>, activate<Gelu>, activate<GeluTanh>, activate<GeluQuick>,
                   activate<Relu>, activate<ReluSquared>, activate<Sigmoid>, activate<Xielu>,
                   activate<ClippedSwiglu>},
      .gate = {gate<Silu>, gate<Gelu>, gate<GeluTanh>, gate<GeluQuick>, gate<Relu>,
               gate<ReluSquared>, gate<Sigmoid>, gate<Xielu>, gate<ClippedSwiglu>},
      .soft_cap = soft_cap,
      .attend = attend,
      .attend_chunk = attend_chunk,
      .merge_chunks = merge_chunks,
      .attend_bf16 = nullptr,
      .convolve = convolve,
      .apply_delta = apply_delta,
      .apply_scan = apply_scan,
      .apply_scan_heads = apply_scan_heads,
      .append_kv = append_kv,
      .hadamard = hadamard,
  };
}

}  // namespace
}  // namespace lockstep
