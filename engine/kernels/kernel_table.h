// The operations that one worker runs, as one table of functions per instruction set. Every row of
// every table computes the same bits: the scalar row is the definition, and a vector lane owns an
// output element, so that neither the width of the vectors, nor the number of tokens in a batch,
// nor how rows are shared between workers changes the order of any sum.
//
// No function allocates, locks or throws. Pointers are 64-byte aligned unless said otherwise;
// buffers do not overlap unless said otherwise.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/kernels/activation.h"
#include "engine/kernels/activation_function.h"
#include "engine/kernels/attention.h"
#include "engine/kernels/packed_matrix.h"

namespace lockstep {

// y[t][r] = sum over k of W[r][k] * x[t][k] for the rows r of panels [panel_begin, panel_end).
// Order of operations, per element, by the form of the activations:
//   kF32 activations: acc = fma(W[r][k], x[t][k], acc), k ascending, from 0.
//   kQ8 activations:  per block of 32 the integer sum of products is exact; then
//     Q4_0 Q5_0 Q8_0: acc = fma(float(isum), d * scale, acc)
//     Q4_1 Q5_1:      that, then acc = fma(-m, scaled_sum, acc)
//     Q4_K Q5_K:      acc = fma(float(isum), (d * sc) * scale, acc), then
//                     acc = fma(dmin * m, scaled_sum, acc)
//     Q6_K:           for each half of 16: acc = fma(float(half's isum), (d * sc) * scale, acc)
//     codes (tensor/formats/coded.h): as Q4_0, the scale being the block's, or as Q6_K where each
//                     half has one; with minimums, then for each half
//                     acc = fma(dmin * m, scale * float(half's negated_sum), acc)
//   where each product in a term is one f32 multiplication; the activation's
//   scale and scaled_sum are in activation.h.
//   kBf16 activations: weights are rounded to bf16 (nearest even) from the very f32 values that
//     unpack_row() gives, a quantized format's zeros all positive; those of F16 are split into a
//     bf16 and the bf16 of what is left, BF16's are as they are. Per 32 k, absent ones being 0:
//       even = fma(w[k], x[k], even) for k = 0, 2 .. 30 from 0; odd alike for k = 1, 3 .. 31;
//       acc = acc + (even + odd)
//     with F16 twice: for the first parts, then for the second. Numbers below the normal ones are
//     zero, as operands and as results. This is what the tile product of AMX computes.
//   kBf16Dots activations, with BF16 weights alone: per pair of columns k, k + 1, absent ones being
//     0, acc = fma(w[k + 1], x[k + 1], acc), and then acc = fma(w[k], x[k], acc).
//     Numbers below the normal ones are zero, as operands and as results.
//     This is what VDPBF16PS computes.
//   then  y = acc,  or acc * token_scales[t];  then that + bias[r];  and with `accumulate`  y[t][r]
//   + that.
struct MatmulArguments {
  PackedMatrix matrix;
  size_t panel_begin = 0;
  size_t panel_end = 0;
  const std::byte* input = nullptr;  // token_count rows, from the first column that is multiplied
  size_t input_stride_bytes = 0;
  // For inputs in kQ8 that are columns of wider rows: the rows' columns, and the number of columns
  // before the first that is multiplied, a multiple of 32. 0: rows are as wide as the matrix.
  size_t row_columns = 0;
  size_t row_first = 0;
  size_t token_count = 0;
  float* output = nullptr;  // y[t][r] is output[t * output_stride + r]
  size_t output_stride = 0;
  const float* token_scales = nullptr;  // token_count values, or none
  const float* bias = nullptr;          // matrix.rows values, or none
  bool accumulate = false;
  // Panels that a product of few tokens walks side by side, each a stream of memory: 1 or 2. No bit
  // depends on it.
  size_t panel_streams = 1;
};

// Two products of the same tokens with matrices of one format and size, and the gate's activation:
// of their y what KernelTable::gate gives for kSilu, as to_bf16() rounds it. y itself is stored
// nowhere.
struct GatedArguments {
  MatmulArguments gate;
  MatmulArguments up;           // as the gate's, but for weights, token_scales and bias
  std::byte* output = nullptr;  // of token t and row r at t * output_stride_bytes + 2 r
  size_t output_stride_bytes = 0;
};

// One token of a causal convolution: each column by itself, over the last tokens of a sequence. Any
// alignment.
//   u = x, or before * x
//   sum = bias, or 0;  per tap of which there is a token, the earliest first and u last,
//     sum = fma(factor, u of that token, sum)
//   out = sum, or behind * sum
struct ConvolutionRow {
  const float* x = nullptr;
  const float* before = nullptr;   // or none
  const float* behind = nullptr;   // or none
  const float* factors = nullptr;  // [tap]
  size_t factor_stride = 0;        // floats
  size_t taps = 0;
  const float* bias = nullptr;  // or none
  // [tap]: u of the tokens before, taps - 1 rows; null: the sequence has no token there.
  const float* const* earlier = nullptr;
  float* input = nullptr;  // gets u; may be the row of the earliest token
  size_t count = 0;        // columns
};

// Some columns of one head of a gated delta net: tokens of a sequence that follow one another. Of
// each, in order:
//   kept = decay * (sum over i of fma(k[i], S[i][c], ...), i ascending, from 0)
//   u = beta * (v[c] - kept)
//   S[i][c] = fma(k[i], u, decay * S[i][c])
//   out[c] = sum over i of fma(q[i], the new S[i][c], ...), i ascending, from 0
// With a decay for each row of the state, which either all tokens of a call have or none has:
//   kept = sum over i of fma(kept_k[i], S[i][c], ...), likewise
//   S[i][c] = fma(k[i], u, decays[i] * S[i][c])
// Any alignment.
struct DeltaToken {
  const float* q = nullptr;  // `dimension` of each
  const float* k = nullptr;
  const float* v = nullptr;  // `count` of each
  float* out = nullptr;
  float decay = 0;
  float beta = 0;
  const float* decays = nullptr;  // `dimension`, instead of `decay`; or none
  const float* kept_k = nullptr;  // with them: k[i] * decays[i]
};
struct DeltaRows {
  const DeltaToken* tokens = nullptr;
  size_t token_count = 0;  // at least one
  size_t dimension = 0;
  float* state = nullptr;   // S[i][c] at i * state_stride + c
  size_t state_stride = 0;  // floats
  size_t count = 0;         // columns
};

// Some columns of one head of a scan: tokens of a sequence that follow one another. Of each, in
// f32, and for each row i of the state and each column x[c]:
//   S[i][c] = fma(b[i], step * x[c], decay * S[i][c])
//   out[c] = fma(skip, x[c], sum over i of fma(c[i], the new S[i][c], ...), i ascending, from 0)
// Any alignment.
struct ScanToken {
  const float* c = nullptr;  // `dimension` of each
  const float* b = nullptr;
  const float* x = nullptr;  // `count` of each
  float* out = nullptr;
  float decay = 0;
  float step = 0;
};
struct ScanRows {
  const ScanToken* tokens = nullptr;
  size_t token_count = 0;
  size_t dimension = 0;
  float skip = 0;
  float* state = nullptr;   // S[i][c] at i * state_stride + c
  size_t state_stride = 0;  // floats
  size_t count = 0;         // columns
};

// Some heads of one column each, of a scan whose rows decay by themselves: likewise. Of each token,
// in f32, and for each row i of the state and each head h:
//   t[h] = softplus(steps[h] + bias[h])
//   S[i][h] = fma(b[i], t[h] * x[h], exp(decay[i][h] * t[h]) * S[i][h])
//   out[h] = fma(skip[h], x[h], sum over i of fma(c[i], the new S[i][h], ...), i ascending, from 0)
// with exponential.inl.h's functions.
struct ScanHeadsToken {
  const float* c = nullptr;  // `dimension` of each
  const float* b = nullptr;
  const float* x = nullptr;  // `count` of each
  const float* steps = nullptr;
  float* step = nullptr;  // gets t; `count` of each
  float* out = nullptr;
};
struct ScanHeadsRows {
  const ScanHeadsToken* tokens = nullptr;
  size_t token_count = 0;
  size_t dimension = 0;
  const float* decay = nullptr;  // [i][h]: at i * decay_stride + h
  size_t decay_stride = 0;       // floats
  const float* bias = nullptr;   // `count` of each
  const float* skip = nullptr;
  float* state = nullptr;   // S[i][h] at i * state_stride + h
  size_t state_stride = 0;  // floats
  size_t count = 0;         // heads
};

using MatmulKernel = void (*)(const MatmulArguments&);
// `parameters`: Activation's; anything where the function has none.
using ActivationKernel = void (*)(const float* x, size_t count, const float* parameters,
                                  float* out);
using GateKernel = void (*)(const float* x, const float* y, size_t count, const float* parameters,
                            float* out);
using GatedKernel = void (*)(const GatedArguments&);

struct KernelTable {
  std::string_view name;  // "scalar", "avx2", "avx512", "avx512bf16", "amx"
  bool has_tiles;         // a matrix unit computes products with kBf16 activations
  bool has_bf16_dots;     // an instruction computes a pair of kBf16Dots

  // One per Format, by its number: with activations of activation_form(format), ...
  std::array<MatmulKernel, kFormatCount> matmul;
  // ... of form kBf16; none for F32 ...
  std::array<MatmulKernel, kFormatCount> matmul_bf16;
  // ... and of form kBf16Dots; for BF16 alone.
  std::array<MatmulKernel, kFormatCount> matmul_bf16_dots;

  // With activations of form kBf16, for many tokens: the bits of matmul_bf16, gate[kSilu] and
  // to_bf16 one after another. With has_tiles alone; none for F32.
  std::array<GatedKernel, kFormatCount> gated_bf16;

  // Elements to bf16, nearest even. Any alignment of `values`; `out` is that of bf16.
  void (*to_bf16)(const float* values, size_t count, std::byte* out);

  // Elements [begin, begin + count) of a row of `columns`, into their places of a kQ8 row. `values`
  // points at the first of them. All three numbers are multiples of 32.
  void (*quantize)(const float* values, size_t columns, size_t begin, size_t count, std::byte* row);

  // out[i] = x[i] * (1 / sqrt(sum(x^2) / count + epsilon)) * weight[i]. The sum: per chunk of 32
  // elements (the last may be shorter) 16 lanes, lane i = fma over elements i and i + 16 from 0,
  // lanes added pairwise (8, 4, 2, 1 apart); chunk sums added in order. x and out may be the same.
  // Any alignment.
  void (*rms_norm)(const float* x, const float* weight, size_t count, float epsilon, float* out);

  // The product x * weight before its norm is known, and what the norm is made of: out[i] = x[i] *
  // weight[i], and per chunk of 32 elements (the last may be shorter) the sum of the x^2, as
  // rms_norm forms it. Any alignment.
  void (*weigh)(const float* x, const float* weight, size_t count, float* out, float* chunk_sums);

  // Per chunk of 32 elements (the last may be shorter) the sum of the x^2, as rms_norm forms it.
  // Any alignment.
  void (*sum_squares)(const float* x, size_t count, float* chunk_sums);
  // Per chunk the sum s of the x, and the sum of the (x - s / size of the chunk)^2, both in the
  // order of rms_norm's sums (of the first: x[i] + x[i + 16] in lane i). Any alignment.
  void (*sum_moments)(const float* x, size_t count, float* chunk_sums, float* chunk_squares);

  // One per ActivationFunction, by its number, with an exponential of ours (the same bits in every
  // table). out may be x. Any alignment. Each operation rounds once:
  //   kSilu, kGeluQuick, kGeluTanh: x / (1 + exp(-y)) with y = x, 1.702 x, and
  //     1.59576912 * fma((x * x) * x, 0.044715, x)
  //   kGelu: x * share, with the normal distribution's share below x as activations.inl.h has it
  //   kRelu: x, of negative x 0; kReluSquared: its square
  //   kSigmoid: 1 / (1 + exp(-x))
  //   kXielu: x * fma(a, x, c), and of others fma(b, r, c * x) with r = exp(min(x, d)) - 1 - x as
  //     activations.inl.h has it
  //   kClippedSwiglu: z / (1 + exp(-(a * z)))
  std::array<ActivationKernel, kActivationFunctionCount> activate;
  // out[i] = activation(x[i]) * y[i], of kClippedSwiglu * (the bounded y[i] + 1). out may be x. Any
  // alignment.
  std::array<GateKernel, kActivationFunctionCount> gate;
  // out[i] = cap * tanh(x[i] / cap), with a tanh of ours. out may be x. Any alignment.
  void (*soft_cap)(const float* x, size_t count, float cap, float* out);

  void (*attend)(const AttentionArguments&);
  // The same in parts, which any worker may compute: one chunk's partial result for one token
  // (token_count 1), and the output from the partial results of all chunks, in order.
  void (*attend_chunk)(const AttentionArguments&, size_t chunk, float* partial);
  void (*merge_chunks)(const AttentionArguments&, const float* partials, size_t partial_stride);
  // Attention in bf16, another function (attention.h): with has_tiles alone, elsewhere none.
  void (*attend_bf16)(const AttentionArguments&);

  // One token of a causal convolution.
  void (*convolve)(const ConvolutionRow& row, float* out);
  // Tokens of a gated delta net. No bit depends on how many come together.
  void (*apply_delta)(const DeltaRows& rows);
  // Tokens of a scan, likewise.
  void (*apply_scan)(const ScanRows& rows);
  void (*apply_scan_heads)(const ScanHeadsRows& rows);

  // Stores one token's key and value of one KV head into slot `slot` (0 to 63) of a page's blocks.
  void (*append_kv)(const KvRow& row, size_t slot, std::byte* key_block, std::byte* value_block);
  // Multiplies each `size` elements, a power of two, of the `count` with the Hadamard matrix of
  // that size (Sylvester's, whose element in row i and column j is -1 to the number of bits that i
  // and j share) over the root of the size. By sums and differences of elements 1, 2, 4 .. apart,
  // then the product with 1 / root, rounded to f32. Its own inverse, but for what is rounded.
  void (*hadamard)(size_t size, size_t count, float* x);
};

// None where the table has no such product.
inline MatmulKernel matmul_kernel(const KernelTable& table, Format format, ActivationForm form) {
  const auto index = static_cast<size_t>(format);
  if (form == ActivationForm::kBf16) return table.matmul_bf16[index];
  if (form == ActivationForm::kBf16Dots) return table.matmul_bf16_dots[index];
  return table.matmul[index];
}

inline ActivationKernel activation_kernel(const KernelTable& table, ActivationFunction function) {
  return table.activate[static_cast<size_t>(function)];
}

inline GateKernel gate_kernel(const KernelTable& table, ActivationFunction function) {
  return table.gate[static_cast<size_t>(function)];
}

inline GatedKernel gated_kernel(const KernelTable& table, Format format) {
  return table.gated_bf16[static_cast<size_t>(format)];
}

// The rows: one function per file of an instruction set, and nothing else, is seen from outside
// that file. Each returns a constant and may be called on any machine.
const KernelTable& scalar_kernel_table();
const KernelTable& avx2_kernel_table();
const KernelTable& avx512_kernel_table();
// A row of the products that AVX-512 computes with its bf16 instructions: all other functions are
// none.
const KernelTable& avx512bf16_pair_kernels();
// A row of what the matrix unit of AMX computes, and of nothing else: all other functions are none.
const KernelTable& amx_unit_kernels();
// AVX-512's row with those of AMX.
const KernelTable& amx_kernel_table();

}  // namespace lockstep
