#include "engine/serving/weight_filling.h"

namespace lockstep {

WeightFilling::WeightFilling(const GgufFile& file, const Graph& graph, Ranks& ranks)
    : file_(file), graph_(graph) {
  for (size_t rank = 0; rank < ranks.count(); ++rank) {
    Rank& target = ranks[rank];
    sinks_.push_back(target.make_weight_sink());
    targets_.push_back({.plan = target.plan(),
                        .weights = target.addresses().at(ArenaOffset<std::byte>{Arena::kWeights}),
                        .workers = target.workers(),
                        .node = target.place().node,
                        .sink = sinks_.back().get()});
  }
}

Result<void> WeightFilling::run(DirectIo direct, std::atomic<uint64_t>& bytes_done) const {
  const LoadOptions how = {.direct = direct != DirectIo::kNo,
                           .from_cache = direct == DirectIo::kAuto};
  const auto loaded = load_weights(file_, graph_, targets_, bytes_done, how);
  if (!loaded) return std::unexpected(loaded.error());
  return {};
}

}  // namespace lockstep
