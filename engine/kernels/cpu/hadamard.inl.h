// Hadamard matrices times heads; see KernelTable::hadamard. Written over the small vector type.
#pragma once

#include <cstddef>

namespace lockstep {
namespace {

// One stage of a block: sums and differences of elements `kApart` apart.
template <size_t kApart>
inline void add_apart(size_t size, float* x) {
  for (size_t begin = 0; begin < size; begin += 2 * kApart) {
    for (size_t i = begin; i < begin + kApart; ++i) {
      const float first = x[i];
      const float second = x[i + kApart];
      x[i] = first + second;
      x[i + kApart] = first - second;
    }
  }
}

// The same for elements whole vectors apart.
inline void add_vectors_apart(size_t apart, size_t size, float* x) {
  for (size_t begin = 0; begin < size; begin += 2 * apart) {
    for (size_t i = begin; i < begin + apart; i += 16) {
      const F32x16 first = load(x + i);
      const F32x16 second = load(x + i + apart);
      store(x + i, add(first, second));
      store(x + i + apart, sub(first, second));
    }
  }
}

inline void hadamard(size_t size, size_t count, float* x) {
  const float factor = 1.0F / __builtin_sqrtf(static_cast<float>(size));
  for (float* block = x; block < x + count; block += size) {
    if (size >= 2) add_apart<1>(size, block);
    if (size >= 4) add_apart<2>(size, block);
    if (size >= 8) add_apart<4>(size, block);
    if (size >= 16) add_apart<8>(size, block);
    for (size_t apart = 16; apart < size; apart *= 2) add_vectors_apart(apart, size, block);
    for (size_t i = 0; i < size; ++i) block[i] *= factor;
  }
}

}  // namespace
}  // namespace lockstep
