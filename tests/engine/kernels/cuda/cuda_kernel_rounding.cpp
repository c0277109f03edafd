#include "tests/engine/kernels/cuda/kernel_rounding.h"

namespace lockstep {

// NVIDIA promises no more than that sums of bf16 and f16 have at least single precision. Assumed is
// what Fasi, Higham, Mikaitis and Pranesh found ("Numerical behavior of NVIDIA tensor cores",
// 2021), without the bits more that some generations have: products are exact; of several and the
// float all are cut off where the greatest of them has its 24th bit; so is their sum. Each cut
// loses less than 2^-23 of the magnitudes. With 8 products at a time that is 9 addends and a sum,
// twice: 2 * 10 * 2; with 16 at a time 17 and a sum, 18 * 2.
size_t tile_product_roundings() {
  return 40;
}

// Either exponential is off by at most two units of the last place, and a gate has three roundings
// more, each of which may go the other way.
double exponential_error() {
  return 0x1p-20;
}

}  // namespace lockstep
