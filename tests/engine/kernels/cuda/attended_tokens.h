// Attention of generated tokens over a random cache, for tests of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/engine/kernels/cuda/gpu_cache.h"
#include "tests/engine/kernels/group_traits.h"

namespace lockstep {

struct AttendedPlace {
  uint32_t sequence;
  uint32_t position;
};

struct AttendedHeads {
  unsigned count;
  unsigned group;
  unsigned offset = 0;
};

struct Attended {
  const GpuCache& cache;
  AttendedHeads heads;
  unsigned window = 0;
  unsigned grid_rows = 3;
  size_t units_max = 1000;  // tokens beyond them are walked over
  GroupTraits others = {};  // sections, a cap, and sinks of all heads
};

inline constexpr float kAttendedScale = 0.125F;

// A token's queries, whatever else is in the batch.
std::vector<float> queries_of(const Attended& run, const AttendedPlace& place);

struct AttendedOutputs {
  std::vector<float> floats;  // [token][head][dimension of values]
  std::vector<uint16_t> bf16;
  size_t bf16_stride = 0;

  bool operator==(const AttendedOutputs&) const = default;
};

// Over heads that are prepared. Expects that each token is the units' or the walked ones', and that
// counters are 0 afterwards.
AttendedOutputs attend_prepared(const Attended& run, const std::vector<AttendedPlace>& places);

// Heads that are to be prepared, with norms and rotary positions: by attention itself, or by a
// launch before it. `places`: of a sequence one at most; its key and value get into the cache.
// `passes`: so many times the same, which is to give the same.
enum class Preparing { kApart, kByAttention };
AttendedOutputs attend_unprepared(const Attended& run, const std::vector<AttendedPlace>& places,
                                  Preparing preparing, int passes = 1);

}  // namespace lockstep
