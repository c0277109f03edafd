// How the bytes of a format's block lie in a panel: for those who pack and unpack. The tiles are
// described in packed_matrix.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/tensor/format.h"

namespace lockstep {

// Raised whenever the same weights, packed, become other bytes: those that an earlier version of
// the program packed and left in memory are then packed anew. A test holds it to the bytes.
inline constexpr unsigned kPackingVersion = 1;

enum class PanelUnit : uint8_t { kTwoBytes, kFourBytes, kBitPlane };

constexpr size_t unit_bytes(PanelUnit unit) {
  return unit == PanelUnit::kTwoBytes ? 2 : 4;
}

// A part of a block: where it begins and ends in the file's block, in bytes.
struct PanelPart {
  size_t begin;
  size_t end;
  PanelUnit unit;
};

// The parts of a format's block in the order in which the tile holds them.
std::span<const PanelPart> parts_of(Format format);

}  // namespace lockstep
