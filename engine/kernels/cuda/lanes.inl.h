// What the lanes of a warp do together. Included after gpu_code.h.
#pragma once

namespace lockstep {
namespace {

// The sum over lanes up to `distance` apart and twice that, added pairwise, the farthest first:
// over all 32 from 16 on. Each of them has it; called by all lanes.
GPU_FUNCTION float add_lanes(float value, unsigned distance) {
  for (; distance > 0; distance /= 2) value += from_lane_across(value, distance);
  return value;
}

}  // namespace
}  // namespace lockstep
