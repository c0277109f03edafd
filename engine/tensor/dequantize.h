// From stored blocks to float, one function per format, for the table in format.cpp. Each value is
// computed in the order of single-precision operations that the format's definition gives, without
// fused operations, so that the bits are those of any exact reader.
// Source of the layouts: ggml's block definitions.
#pragma once

#include <cstddef>

namespace lockstep {

// `count` is a multiple of the format's block_elements; `blocks` needs no alignment.
void dequantize_f32(const std::byte* blocks, size_t count, float* values);
void dequantize_f16(const std::byte* blocks, size_t count, float* values);
void dequantize_bf16(const std::byte* blocks, size_t count, float* values);
void dequantize_q8_0(const std::byte* blocks, size_t count, float* values);
void dequantize_q4_0(const std::byte* blocks, size_t count, float* values);
void dequantize_q4_1(const std::byte* blocks, size_t count, float* values);
void dequantize_q5_0(const std::byte* blocks, size_t count, float* values);
void dequantize_q5_1(const std::byte* blocks, size_t count, float* values);
void dequantize_q4_k(const std::byte* blocks, size_t count, float* values);
void dequantize_q5_k(const std::byte* blocks, size_t count, float* values);
void dequantize_q6_k(const std::byte* blocks, size_t count, float* values);

}  // namespace lockstep
