// A table of 16 bytes that codes of four bits are looked up in.
#pragma once

#include <array>
#include <cstdint>

namespace lockstep {
namespace {

struct ByteTable {
  alignas(16) uint8_t entries[16];

  // Each value with `added`.
  constexpr ByteTable(const std::array<int8_t, 16>& values, int added) : entries() {
    for (unsigned i = 0; i < 16; ++i) entries[i] = static_cast<uint8_t>(values[i] + added);
  }
};

}  // namespace
}  // namespace lockstep
