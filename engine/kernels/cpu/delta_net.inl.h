// A token of a gated delta net; see kernel_table.h. Written over the small vector type, and without
// functions of the standard library (elementwise.inl.h).
//
// A lane owns a column of the state. Each sum is one chain, so several columns' chains run side by
// side: four vectors hide the latency of a multiply-add. The state is read twice and written once,
// from the first cache where a caller gives as many columns as fit it.
#pragma once

#include <cstddef>

#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

template <size_t kVectors>
inline void apply_delta_columns(const DeltaRow& row, size_t column, float* out) {
  const F32x16 decay = broadcast(row.decay);
  F32x16 sums[kVectors];
  for (F32x16& sum : sums) sum = zero();
  const float* state = row.state + column;
  for (size_t i = 0; i < row.dimension; ++i, state += row.state_stride) {
    const F32x16 k = broadcast(row.k[i]);
    for (size_t j = 0; j < kVectors; ++j) sums[j] = fma(k, load(state + 16 * j), sums[j]);
  }
  F32x16 changes[kVectors];
  for (size_t j = 0; j < kVectors; ++j) {
    const F32x16 missing = sub(load(row.v + column + 16 * j), mul(decay, sums[j]));
    changes[j] = mul(broadcast(row.beta), missing);
    sums[j] = zero();
  }
  float* changed = row.state + column;
  for (size_t i = 0; i < row.dimension; ++i, changed += row.state_stride) {
    const F32x16 k = broadcast(row.k[i]);
    const F32x16 q = broadcast(row.q[i]);
    for (size_t j = 0; j < kVectors; ++j) {
      const F32x16 next = fma(k, changes[j], mul(decay, load(changed + 16 * j)));
      store(changed + 16 * j, next);
      sums[j] = fma(q, next, sums[j]);
    }
  }
  for (size_t j = 0; j < kVectors; ++j) store(out + column + 16 * j, sums[j]);
}

// Fewer than 16 columns.
inline void apply_delta_rest(const DeltaRow& row, size_t column, float* out) {
  const size_t lanes = row.count - column;
  const F32x16 decay = broadcast(row.decay);
  F32x16 sum = zero();
  float* state = row.state + column;
  for (size_t i = 0; i < row.dimension; ++i) {
    sum = fma(broadcast(row.k[i]), load_first(state + i * row.state_stride, lanes), sum);
  }
  const F32x16 missing = sub(load_first(row.v + column, lanes), mul(decay, sum));
  const F32x16 change = mul(broadcast(row.beta), missing);
  sum = zero();
  for (size_t i = 0; i < row.dimension; ++i, state += row.state_stride) {
    const F32x16 kept = mul(decay, load_first(state, lanes));
    const F32x16 next = fma(broadcast(row.k[i]), change, kept);
    store_first(state, next, lanes);
    sum = fma(broadcast(row.q[i]), next, sum);
  }
  store_first(out + column, sum, lanes);
}

inline void apply_delta(const DeltaRow& row, float* out) {
  size_t column = 0;
  for (; column + 64 <= row.count; column += 64) apply_delta_columns<4>(row, column, out);
  for (; column + 16 <= row.count; column += 16) apply_delta_columns<1>(row, column, out);
  if (column < row.count) apply_delta_rest(row, column, out);
}

}  // namespace
}  // namespace lockstep
