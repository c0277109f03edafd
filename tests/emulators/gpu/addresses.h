// From what a lane calls an address to where that lies on the host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tests/emulators/gpu/program.h"

namespace lockstep::ptx {

enum class Touch : uint8_t {
  kRead,
  kWrite,
  kPromise,  // will be written later: counts as unwritten until then
};

struct HostAddresses {
  std::byte*& operator[](uint32_t lane) { return at[lane]; }
  std::byte* operator[](uint32_t lane) const { return at[lane]; }

  alignas(64) std::array<std::byte*, kLanes> at;
  // All lanes are active, and each touches what follows what the lane before it touches.
  bool in_a_row = false;
};

// Each active lane touches so many bytes at the address in that register plus the offset. Fills in
// `host` for the active lanes (and for others something that may be read). False: it has failed.
struct GlobalSpace {
  static bool find(Warp& warp, const Instruction& instruction, uint32_t address_register,
                   uint64_t offset, uint32_t bytes, Touch touch, HostAddresses& host);
};
struct SharedSpace {
  static bool find(Warp& warp, const Instruction& instruction, uint32_t address_register,
                   uint64_t offset, uint32_t bytes, Touch touch, HostAddresses& host);
};
struct LocalSpace {
  static bool find(Warp& warp, const Instruction& instruction, uint32_t address_register,
                   uint64_t offset, uint32_t bytes, Touch touch, HostAddresses& host);
};
struct ParameterSpace {
  static bool find(Warp& warp, const Instruction& instruction, uint32_t address_register,
                   uint64_t offset, uint32_t bytes, Touch touch, HostAddresses& host);
};

}  // namespace lockstep::ptx
