// Tokens of a gated delta net; see kernel_table.h. Written over the small vector type, and without
// functions of the standard library (elementwise.inl.h).
//
// A lane owns a column of the state. Each sum is one chain, so the chains of several columns and of
// both sums run side by side. A row of the state is read and written once for each token: what has
// just become of it is multiplied with the next token's key while it is in a register.
#pragma once

#include <cstddef>

#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

// Columns from `column` on: a vector of them for each of these.
template <size_t kVectors>
struct DeltaSums {
  F32x16 of[kVectors];

  void clear() {
    for (F32x16& sum : of) sum = zero();
  }
};

// The key that is multiplied with the state before the state decays.
template <bool kHasDecays>
inline const float* kept_key(const DeltaToken& token) {
  return kHasDecays ? token.kept_k : token.k;
}

// The sums of the state times the first token's key.
template <size_t kVectors, bool kHasDecays>
inline DeltaSums<kVectors> sum_keys(const DeltaRows& rows, size_t column) {
  const float* const keys = kept_key<kHasDecays>(*rows.tokens);
  DeltaSums<kVectors> sums;
  sums.clear();
  const float* state = rows.state + column;
  for (size_t i = 0; i < rows.dimension; ++i, state += rows.state_stride) {
    const F32x16 k = broadcast(keys[i]);
    for (size_t j = 0; j < kVectors; ++j) sums.of[j] = fma(k, load(state + 16 * j), sums.of[j]);
  }
  return sums;
}

// `kept`: the sums of the state times this token's key; becomes those of the next one's, if there
// is one.
template <size_t kVectors, bool kHasDecays, bool kHasNext>
inline void apply_delta_token(const DeltaRows& rows, const DeltaToken& token, size_t column,
                              DeltaSums<kVectors>& kept) {
  const F32x16 decay = broadcast(token.decay);
  const F32x16 beta = broadcast(token.beta);
  F32x16 changes[kVectors];
  DeltaSums<kVectors> sums;
  for (size_t j = 0; j < kVectors; ++j) {
    const F32x16 held = kHasDecays ? kept.of[j] : mul(decay, kept.of[j]);
    const F32x16 missing = sub(load(token.v + column + 16 * j), held);
    changes[j] = mul(beta, missing);
  }
  sums.clear();
  kept.clear();
  const float* const next_k = kHasNext ? kept_key<kHasDecays>(*(&token + 1)) : nullptr;
  float* state = rows.state + column;
  for (size_t i = 0; i < rows.dimension; ++i, state += rows.state_stride) {
    const F32x16 k = broadcast(token.k[i]);
    const F32x16 q = broadcast(token.q[i]);
    const F32x16 row_decay = kHasDecays ? broadcast(token.decays[i]) : decay;
    for (size_t j = 0; j < kVectors; ++j) {
      const F32x16 next = fma(k, changes[j], mul(row_decay, load(state + 16 * j)));
      store(state + 16 * j, next);
      sums.of[j] = fma(q, next, sums.of[j]);
      if constexpr (kHasNext) kept.of[j] = fma(broadcast(next_k[i]), next, kept.of[j]);
    }
  }
  for (size_t j = 0; j < kVectors; ++j) store(token.out + column + 16 * j, sums.of[j]);
}

template <bool kHasDecays, size_t kVectors>
inline void apply_delta_columns(const DeltaRows& rows, size_t column) {
  DeltaSums<kVectors> kept = sum_keys<kVectors, kHasDecays>(rows, column);
  const DeltaToken* const last = rows.tokens + rows.token_count - 1;
  for (const DeltaToken* token = rows.tokens; token != last; ++token) {
    apply_delta_token<kVectors, kHasDecays, true>(rows, *token, column, kept);
  }
  apply_delta_token<kVectors, kHasDecays, false>(rows, *last, column, kept);
}

// Fewer than 16 columns, token by token.
template <bool kHasDecays>
inline void apply_delta_rest(const DeltaRows& rows, const DeltaToken& token, size_t column) {
  const size_t lanes = rows.count - column;
  const F32x16 decay = broadcast(token.decay);
  F32x16 sum = zero();
  const float* const keys = kept_key<kHasDecays>(token);
  float* state = rows.state + column;
  for (size_t i = 0; i < rows.dimension; ++i) {
    sum = fma(broadcast(keys[i]), load_first(state + i * rows.state_stride, lanes), sum);
  }
  const F32x16 held = kHasDecays ? sum : mul(decay, sum);
  const F32x16 missing = sub(load_first(token.v + column, lanes), held);
  const F32x16 change = mul(broadcast(token.beta), missing);
  sum = zero();
  for (size_t i = 0; i < rows.dimension; ++i, state += rows.state_stride) {
    const F32x16 row_decay = kHasDecays ? broadcast(token.decays[i]) : decay;
    const F32x16 kept = mul(row_decay, load_first(state, lanes));
    const F32x16 next = fma(broadcast(token.k[i]), change, kept);
    store_first(state, next, lanes);
    sum = fma(broadcast(token.q[i]), next, sum);
  }
  store_first(token.out + column, sum, lanes);
}

// One token's state comes from memory, that of several stays in the first cache: of 128 dimensions
// 16 KiB are two vectors of columns.
template <bool kHasDecays>
inline void apply_delta_rows(const DeltaRows& rows) {
  size_t column = 0;
  if (rows.token_count == 1) {
    for (; column + 64 <= rows.count; column += 64)
      apply_delta_columns<kHasDecays, 4>(rows, column);
  }
  constexpr size_t kColumns = 16 * kDeltaVectors;
  for (; column + kColumns <= rows.count; column += kColumns) {
    apply_delta_columns<kHasDecays, kDeltaVectors>(rows, column);
  }
  for (; column + 16 <= rows.count; column += 16) apply_delta_columns<kHasDecays, 1>(rows, column);
  if (column == rows.count) return;
  for (size_t token = 0; token < rows.token_count; ++token) {
    apply_delta_rest<kHasDecays>(rows, rows.tokens[token], column);
  }
}

inline void apply_delta(const DeltaRows& rows) {
  rows.tokens->decays == nullptr ? apply_delta_rows<false>(rows) : apply_delta_rows<true>(rows);
}

}  // namespace
}  // namespace lockstep
