#include "engine/runtime/rank.h"

#include <utility>

namespace lockstep {

Result<std::unique_ptr<Rank>> Rank::make(const Graph& graph, const PlanOptions& options,
                                         std::span<const int> cpus) {
  std::unique_ptr<Rank> rank(new Rank());
  const Plan sizes = make_plan(graph, options);
  const auto take = [](NodeMemory& arena, size_t bytes, std::string_view what) -> Result<void> {
    auto memory = NodeMemory::allocate({.bytes = bytes, .what = what});
    if (!memory) return std::unexpected(memory.error());
    arena = std::move(*memory);
    return {};
  };
  if (auto taken = take(rank->weights_, sizes.weight_bytes, "weights"); !taken) {
    return std::unexpected(taken.error());
  }
  if (auto taken = take(rank->scratch_, sizes.scratch_bytes, "activations"); !taken) {
    return std::unexpected(taken.error());
  }
  if (auto taken = take(rank->kv_, sizes.kv.size_bytes(), "the KV cache"); !taken) {
    return std::unexpected(taken.error());
  }
  rank->plan_ = make_plan(graph, options,
                          {.weights = reinterpret_cast<uintptr_t>(rank->weights_.data()),
                           .scratch = reinterpret_cast<uintptr_t>(rank->scratch_.data()),
                           .kv = reinterpret_cast<uintptr_t>(rank->kv_.data())});
  auto workers = Workers::start(cpus);
  if (!workers) return std::unexpected(workers.error());
  rank->workers_ = std::move(*workers);
  return rank;
}

}  // namespace lockstep
