// The global memory that blocks of an emulated GPU may reach.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::ptx {

// Addresses begin .. end-1, as the GPU's threads say them; `host` is where the byte at `begin` lies
// for the interpreter (the addresses themselves may be mapped to nothing, so that host code which
// reads through them ends there). begin and host are equal modulo 16.
struct MemoryRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  std::byte* host = nullptr;
};

// Implemented by who owns the allocations. Called by blocks, on the threads that run them.
class Memory {
 public:
  virtual ~Memory() = default;
  // The allocation that holds `address` and that this GPU may reach; an empty range where there is
  // none. A block keeps the ranges that it was given for as long as it lives.
  virtual MemoryRange find(uint64_t address) = 0;
};

}  // namespace lockstep::ptx
