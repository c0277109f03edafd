// The rules of which pages an arena lies in and how much of a node is left alone: one set for code
// that takes memory and for code that plans it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace lockstep {

inline constexpr size_t kSmallPageBytes = 4096;
inline constexpr size_t kHugePageBytes = 2U << 20U;
inline constexpr size_t kGigaPageBytes = 1U << 30U;

// Left over for everything else; below it the kernel starts to kill.
inline constexpr uint64_t kReserveBytes = 64U << 20U;

// The same of one node: on a large one its own watermarks are larger, about a thousandth.
constexpr uint64_t node_reserve_bytes(uint64_t memory_bytes) {
  constexpr uint64_t kReserveDivisor = 256;
  return std::max(kReserveBytes, memory_bytes / kReserveDivisor);
}

// Whether an arena of `bytes` is worth pages of 1 GiB, which make `rounded` bytes of it.
constexpr bool deserves_giga_pages(uint64_t bytes, uint64_t rounded) {
  constexpr uint64_t kWasteDivisor = 16;
  return bytes >= kGigaPageBytes && rounded - bytes < bytes / kWasteDivisor;
}

}  // namespace lockstep
