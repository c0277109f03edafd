// Units of a sum's rows: how threads read, write and send them. Included after gpu_code.h.
#pragma once

#include "engine/collectives/gpu_sum_launch.h"

namespace lockstep {
namespace {

struct Unit {
  float values[kGpuUnitFloats];
};

// A unit as it travels: Words4 as f32, Words2 as bf16.
GPU_FUNCTION void pack(const Unit& unit, Words4& packed) {
  for (unsigned index = 0; index < kGpuUnitFloats; ++index) {
    packed.words[index] = float_to_bits(unit.values[index]);
  }
}
GPU_FUNCTION void pack(const Unit& unit, Words2& packed) {
  for (unsigned index = 0; index < kGpuUnitFloats / 2; ++index) {
    packed.words[index] = bf16_pair(unit.values[2 * index], unit.values[2 * index + 1]);
  }
}
GPU_FUNCTION Unit unpack(const Words4& packed) {
  Unit unit;
  for (unsigned index = 0; index < kGpuUnitFloats; ++index) {
    unit.values[index] = bits_to_float(packed.words[index]);
  }
  return unit;
}
GPU_FUNCTION Unit unpack(const Words2& packed) {
  Unit unit;
  for (unsigned index = 0; index < kGpuUnitFloats; ++index) {
    const uint32_t word = packed.words[index / 2];
    unit.values[index] = from_bf16(static_cast<uint16_t>(word >> (index % 2 * 16)));
  }
  return unit;
}

// A unit's place in rows, and how much of it exists.
struct UnitPlace {
  unsigned row;
  unsigned column;
  unsigned count;
};

GPU_FUNCTION UnitPlace place_of(const GpuSumLaunch& sum, unsigned unit) {
  const unsigned row = unit / sum.units_per_row;
  const unsigned column = unit % sum.units_per_row * kGpuUnitFloats;
  if (column >= sum.column_count) return {row, column, 0};
  const unsigned left = sum.column_count - column;
  return {row, column, left < kGpuUnitFloats ? left : kGpuUnitFloats};
}

// Zeros where there are no columns.
GPU_FUNCTION Unit load_unit(const float* row, const UnitPlace& place, bool aligned) {
  const float* from = row + place.column;
  if (aligned && place.count == kGpuUnitFloats) return unpack(load_16(from));
  Unit unit = {};
  for (unsigned index = 0; index < kGpuUnitFloats; ++index) {
    if (index < place.count) unit.values[index] = from[index];
  }
  return unit;
}

GPU_FUNCTION void store_unit(float* row, const UnitPlace& place, bool aligned, const Unit& unit) {
  float* to = row + place.column;
  if (aligned && place.count == kGpuUnitFloats) {
    Words4 packed;
    pack(unit, packed);
    store_16(to, packed);
    return;
  }
  for (unsigned index = 0; index < kGpuUnitFloats; ++index) {
    if (index < place.count) to[index] = unit.values[index];
  }
}

}  // namespace
}  // namespace lockstep
