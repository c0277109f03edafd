#include "engine/runtime/rank.h"

#include <utility>

namespace lockstep {

Result<std::unique_ptr<Rank>> Rank::start(const RankPlace& place, bool crowded) {
  std::unique_ptr<Rank> rank(new Rank(place));
  auto workers = Workers::start(place.cpus, crowded, place.node, place.processors);
  if (!workers) return std::unexpected(workers.error());
  rank->workers_ = std::move(*workers);
  return rank;
}

Result<void> Rank::allocate(const Plan& sizes) {
  struct Wish {
    NodeMemory& arena;
    size_t bytes;
    std::string_view what;
    bool shared;  // weights can be handed to another process
  };
  const Wish wishes[] = {
      {weights_, sizes.weight_bytes, "weights", true},
      {scratch_, sizes.scratch_bytes, "activations", false},
      {exchange_, sizes.exchange_bytes, "activations that ranks exchange", false},
      {kv_, sizes.kv.size_bytes(), "the KV cache", false},
      {logits_, sizes.logits_bytes, "logits", false},
  };
  for (const Wish& wish : wishes) {
    auto memory = NodeMemory::allocate({.bytes = wish.bytes,
                                        .what = wish.what,
                                        .node = place_.node,
                                        .shared = wish.shared,
                                        .workers = workers_.get()});
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
