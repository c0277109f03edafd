// How kernels round where that is the device's own business: for bounds in the tests of kernels,
// which run on the host in one program and on a GPU in another (cuda_kernels_test).
#pragma once

#include <cstddef>

namespace lockstep {

// A tile product adds 16 terms to a float. Its result is off by at most so many times 2^-24 of all
// their magnitudes together.
size_t tile_product_roundings();

// How far what is computed with an exponential may be from what the C library's gives, as a part
// of it.
double exponential_error();

}  // namespace lockstep
