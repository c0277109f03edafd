// Tokens of a scan; see kernel_table.h. Written over the small vector type, and without functions
// of the standard library (elementwise.inl.h).
//
// A lane owns a column of the state. A few rows of it stay in registers while all tokens go by:
// each token's sums of the rows before lie where its results will.
#pragma once

#include <cstddef>

#include "engine/kernels/cpu/exponential.inl.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

// One token, over some rows of the state that are in registers: sum is the chain over those before.
// decay_of(row): what the row is multiplied with.
template <size_t kRows, typename Decay>
[[gnu::always_inline]] inline F32x16 scan_rows(const float* c, const float* b, Decay decay_of,
                                               F32x16 change, F32x16 (&state)[kRows], F32x16 sum) {
  for (size_t row = 0; row < kRows; ++row) {
    state[row] = fma(broadcast(b[row]), change, mul(decay_of(row), state[row]));
    sum = fma(broadcast(c[row]), state[row], sum);
  }
  return sum;
}

// All tokens, over rows [first, first + kRows) and 16 columns from `column` on.
template <size_t kRows>
inline void apply_scan_rows(const ScanRows& rows, size_t first, size_t column) {
  F32x16 state[kRows];
  float* const own = rows.state + first * rows.state_stride + column;
  for (size_t row = 0; row < kRows; ++row) state[row] = load(own + row * rows.state_stride);
  for (size_t index = 0; index < rows.token_count; ++index) {
    const ScanToken& token = rows.tokens[index];
    const F32x16 change = mul(broadcast(token.step), load(token.x + column));
    F32x16 sum = first == 0 ? zero() : load(token.out + column);
    const F32x16 decay = broadcast(token.decay);
    sum = scan_rows<kRows>(
        token.c + first, token.b + first, [&](size_t) { return decay; }, change, state, sum);
    store(token.out + column, sum);
  }
  for (size_t row = 0; row < kRows; ++row) store(own + row * rows.state_stride, state[row]);
}

// Fewer than 16 columns, from `column` on.
inline void apply_scan_rest(const ScanRows& rows, const ScanToken& token, size_t column) {
  const size_t lanes = rows.count - column;
  const F32x16 decay = broadcast(token.decay);
  const F32x16 x = load_first(token.x + column, lanes);
  const F32x16 change = mul(broadcast(token.step), x);
  F32x16 sum = zero();
  float* own = rows.state + column;
  for (size_t row = 0; row < rows.dimension; ++row, own += rows.state_stride) {
    const F32x16 next = fma(broadcast(token.b[row]), change, mul(decay, load_first(own, lanes)));
    store_first(own, next, lanes);
    sum = fma(broadcast(token.c[row]), next, sum);
  }
  store_first(token.out + column, fma(broadcast(rows.skip), x, sum), lanes);
}

inline void apply_scan(const ScanRows& rows) {
  size_t column = 0;
  for (; column + 16 <= rows.count; column += 16) {
    size_t row = 0;
    for (; row + kScanRows <= rows.dimension; row += kScanRows) {
      apply_scan_rows<kScanRows>(rows, row, column);
    }
    for (; row < rows.dimension; ++row) apply_scan_rows<1>(rows, row, column);
    for (size_t index = 0; index < rows.token_count; ++index) {
      const ScanToken& token = rows.tokens[index];
      const F32x16 x = load(token.x + column);
      store(token.out + column, fma(broadcast(rows.skip), x, load(token.out + column)));
    }
  }
  if (column == rows.count) return;
  for (size_t index = 0; index < rows.token_count; ++index) {
    apply_scan_rest(rows, rows.tokens[index], column);
  }
}

// All tokens, over rows [first, first + kRows) and at most 16 heads from `head` on.
template <size_t kRows>
inline void apply_scan_heads_rows(const ScanHeadsRows& rows, size_t first, size_t head,
                                  size_t lanes) {
  F32x16 state[kRows];
  float* const own = rows.state + first * rows.state_stride + head;
  const float* const decay = rows.decay + first * rows.decay_stride + head;
  for (size_t row = 0; row < kRows; ++row) {
    state[row] = load_first(own + row * rows.state_stride, lanes);
  }
  for (size_t index = 0; index < rows.token_count; ++index) {
    const ScanHeadsToken& token = rows.tokens[index];
    const F32x16 step = load_first(token.step + head, lanes);
    const F32x16 change = mul(step, load_first(token.x + head, lanes));
    const F32x16 before = first == 0 ? zero() : load_first(token.out + head, lanes);
    const F32x16 sum = scan_rows<kRows>(
        token.c + first, token.b + first,
        [&](size_t row) {
          return exponential(mul(load_first(decay + row * rows.decay_stride, lanes), step));
        },
        change, state, before);
    store_first(token.out + head, sum, lanes);
  }
  for (size_t row = 0; row < kRows; ++row) {
    store_first(own + row * rows.state_stride, state[row], lanes);
  }
}

inline void apply_scan_heads(const ScanHeadsRows& rows) {
  for (size_t head = 0; head < rows.count; head += 16) {
    const size_t left = rows.count - head;
    const size_t lanes = left < 16 ? left : 16;
    const F32x16 bias = load_first(rows.bias + head, lanes);
    for (size_t index = 0; index < rows.token_count; ++index) {
      const ScanHeadsToken& token = rows.tokens[index];
      const F32x16 step = softplus(add(load_first(token.steps + head, lanes), bias));
      store_first(token.step + head, step, lanes);
    }
    size_t row = 0;
    for (; row + kScanRows <= rows.dimension; row += kScanRows) {
      apply_scan_heads_rows<kScanRows>(rows, row, head, lanes);
    }
    for (; row < rows.dimension; ++row) apply_scan_heads_rows<1>(rows, row, head, lanes);
    const F32x16 skip = load_first(rows.skip + head, lanes);
    for (size_t index = 0; index < rows.token_count; ++index) {
      const ScanHeadsToken& token = rows.tokens[index];
      const F32x16 x = load_first(token.x + head, lanes);
      store_first(token.out + head, fma(skip, x, load_first(token.out + head, lanes)), lanes);
    }
  }
}

}  // namespace
}  // namespace lockstep
