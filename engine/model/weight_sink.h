// Packs what has been read of a rank's weights for the rank's kernels, into the memory of its
// plan's slices.
#pragma once

#include <cstddef>
#include <span>

#include "engine/base/result.h"
#include "engine/graph/graph.h"
#include "engine/machine/gpu_device.h"
#include "engine/model/load_extents.h"
#include "engine/operations/plan.h"

namespace lockstep {

// An extent that has been read, for one of the slices that it belongs to.
struct ReadExtent {
  const Weight& weight;
  const WeightSlice& slice;
  std::byte* to = nullptr;  // the slice's memory
  const LoadExtent& extent;
  const std::byte* bytes = nullptr;  // extent.bytes
  bool pinned = false;               // a GPU may copy from there
};

// begin(), take() by any thread and several at a time, finish().
class WeightSink {
 public:
  virtual ~WeightSink() = default;

  // It packs whole panels alone (RankToLoad::whole_panels).
  virtual bool takes_whole_panels() const = 0;

  // Before anything is read. No extent has more bytes than that.
  virtual Result<void> begin(size_t extent_bytes_max) = 0;

  // Pins buffers that ranks read into, for all GPUs, until what is returned goes: a sink on a GPU
  // takes pinned bytes faster. Returns no memory where pinned bytes are like any other.
  virtual Result<GpuMemory> pin(std::span<std::byte> buffers) = 0;

  // Brings the extent's part of the slice to the slice's memory, perhaps not yet when it returns;
  // the bytes are no longer needed then.
  virtual Result<void> take(const ReadExtent& read) = 0;

  // Returns when everything is where it belongs, or the first of it that failed; what was needed
  // for the way there is given back.
  virtual Result<void> finish() = 0;
};

// The first of a vector slice's floats that the extent holds.
size_t first_float(const ReadExtent& read);

// Weights of ranks whose memory is the host's: the thread that has read them packs them.
// Serves any number of ranks: it has no state.
class HostWeightSink final : public WeightSink {
 public:
  bool takes_whole_panels() const override { return false; }
  Result<void> begin(size_t) override { return {}; }
  Result<GpuMemory> pin(std::span<std::byte>) override { return GpuMemory(); }
  Result<void> take(const ReadExtent& read) override;
  Result<void> finish() override { return {}; }
};

}  // namespace lockstep
