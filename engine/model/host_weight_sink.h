// Weights of ranks whose memory is the host's: whoever has read them packs them.
#pragma once

#include "engine/model/weight_sink.h"

namespace lockstep {

// Of any number of ranks: it has no state.
class HostWeightSink final : public WeightSink {
 public:
  bool takes_whole_panels() const override { return false; }
  Result<void> begin(size_t) override { return {}; }
  Result<GpuMemory> pin(std::span<std::byte>) override { return GpuMemory(); }
  Result<void> take(const ReadExtent& read) override;
  Result<void> finish() override { return {}; }
};

}  // namespace lockstep
