#include "engine/runtime/rank.h"

#include <utility>

#include "engine/base/check.h"

namespace lockstep {

Result<std::unique_ptr<Rank>> Rank::start(const RankPlace& place, bool crowded) {
  std::unique_ptr<Rank> rank(new Rank(place));
  auto workers = Workers::start(place.cpus, crowded, place.node, place.processors);
  if (!workers) return std::unexpected(workers.error());
  rank->workers_ = std::move(*workers);
  return rank;
}

Result<void> Rank::allocate(const Plan& sizes, ArenaSources sources) {
  struct Wish {
    NodeMemory& arena;
    size_t bytes;
    std::string_view what;
    bool kept = false;
    std::optional<KeptArena>* source = nullptr;
  };
  const Wish wishes[] = {
      {weights_, sizes.weight_bytes, "weights", sources.keep, &sources.weights},
      {scratch_, sizes.scratch_bytes, "activations"},
      {exchange_, sizes.exchange_bytes, "activations that ranks exchange"},
      {kv_, sizes.kv.size_bytes(), "the KV cache", sources.keep, &sources.kv},
      {logits_, sizes.logits_bytes, "logits"},
  };
  for (const Wish& wish : wishes) {
    const MemoryRequest request = {.bytes = wish.bytes,
                                   .what = wish.what,
                                   .node = place_.node,
                                   .shared = wish.kept,
                                   .small_shared = wish.kept && sources.keep_small,
                                   .workers = workers_.get()};
    const bool is_there = wish.source != nullptr && wish.source->has_value();
    if (is_there && (*wish.source)->bytes < wish.bytes) {
      return machine_refused("the memory that was kept for {} has {} bytes, not {}", wish.what,
                             (*wish.source)->bytes, wish.bytes);
    }
    auto memory = is_there ? NodeMemory::adopt(std::move(**wish.source), request)
                           : NodeMemory::allocate(request);
    if (!memory) return std::unexpected(memory.error());
    wish.arena = std::move(*memory);
  }
  return {};
}

ArenaAddresses Rank::arenas() const {
  const auto address = [](const NodeMemory& arena) {
    return reinterpret_cast<uintptr_t>(arena.data());
  };
  return {.weights = address(weights_),
          .scratch = address(scratch_),
          .exchange = address(exchange_),
          .kv = address(kv_),
          .logits = address(logits_)};
}

std::vector<const NodeMemory*> Rank::all_memory() const {
  return {&weights_, &scratch_, &exchange_, &kv_, &logits_};
}

}  // namespace lockstep
