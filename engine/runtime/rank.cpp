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

Result<void> Rank::allocate_working(const Plan& sizes, size_t promised_bytes) {
  struct Wish {
    NodeMemory& arena;
    size_t bytes;
    std::string_view what;
  };
  const Wish wishes[] = {
      {scratch_, sizes.scratch_bytes, "activations"},
      {exchange_, sizes.exchange_bytes, "activations that ranks exchange"},
      {kv_, sizes.kv.size_bytes(), "the KV cache"},
      {logits_, sizes.logits_bytes, "logits"},
  };
  for (const Wish& wish : wishes) {
    auto memory = NodeMemory::allocate({.bytes = wish.bytes,
                                        .what = wish.what,
                                        .node = place_.node,
                                        .workers = workers_.get(),
                                        .promised_bytes = promised_bytes});
    if (!memory) return std::unexpected(memory.error());
    wish.arena = std::move(*memory);
  }
  return {};
}

Result<void> Rank::allocate_weights(const Plan& sizes, size_t promised_bytes) {
  auto memory = NodeMemory::allocate({.bytes = sizes.weight_bytes,
                                      .what = "weights",
                                      .node = place_.node,
                                      .shared = true,
                                      .workers = workers_.get(),
                                      .touch_later = true,
                                      .promised_bytes = promised_bytes});
  if (!memory) return std::unexpected(memory.error());
  weights_ = std::move(*memory);
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
