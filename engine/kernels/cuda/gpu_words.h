// The plain types of gpu_code.h and of its twin.
#pragma once

#include <cstdint>

namespace lockstep {

inline constexpr unsigned kWarpThreads = 32;

struct alignas(16) Words4 {
  uint32_t words[4];
};
struct alignas(8) Words2 {
  uint32_t words[2];
};
struct alignas(16) Floats4 {
  float values[4];
};

}  // namespace lockstep
