// Reading a GPU's memory for the time it takes: what a kernel can have that does nothing else.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

// The bytes of a slice, which a warp reads.
inline constexpr size_t kGpuReadStretch = size_t{16} << 10U;

// sums[s] = the sum of the 32-bit words of stretch s, modulo 2^32, so in whatever order. Of no
// bytes it is an empty kernel: one block, which ends at once.
struct GpuRead {
  const std::byte* memory = nullptr;  // 16-byte aligned
  size_t bytes = 0;                   // a multiple of kGpuReadStretch
  uint32_t* sums = nullptr;
};
void gpu_read_memory(void* stream, const GpuRead& read);

}  // namespace lockstep
