#include "engine/runtime/rank.h"

#include <iterator>
#include <utility>

#include "engine/base/check.h"

namespace lockstep {

Result<std::unique_ptr<Rank>> Rank::start(const RankPlace& place, bool crowded,
                                          const GpuPlatform* gpus) {
  std::unique_ptr<Rank> rank(new Rank(place));
  auto workers = Workers::start(place.cpus, crowded, place.node, place.processors);
  if (!workers) return std::unexpected(workers.error());
  rank->workers_ = std::move(*workers);
  if (place.gpu < 0) return rank;
  CHECK(gpus != nullptr && place.cpus.size() == 1, "a rank on gpu{} with {} workers", place.gpu,
        place.cpus.size());
  auto gpu = GpuRank::open(*gpus, place.gpu);
  if (!gpu) return std::unexpected(gpu.error());
  rank->gpu_ = std::move(*gpu);
  return rank;
}

Result<void> Rank::allocate(const Plan& sizes, ArenaSources sources, const HostShare& host) {
  struct Wish {
    NodeMemory& arena;
    size_t bytes;
    std::string_view what;
    bool kept = false;
    std::optional<KeptArena>* source = nullptr;
  };
  const bool on_host = gpu_ == nullptr;
  const auto if_host = [](bool is_host, size_t bytes) { return is_host ? bytes : 0; };
  // What a GPU exchanges with processors lies where they are.
  const Wish wishes[] = {
      {weights_, if_host(on_host, sizes.weight_bytes), "weights", sources.keep, &sources.weights},
      {scratch_, if_host(on_host, sizes.scratch_bytes), "activations"},
      {exchange_, if_host(on_host || host.exchange, sizes.exchange_bytes),
       "activations that ranks exchange"},
      {kv_, if_host(on_host, sizes.kv.size_bytes()), "the KV cache", sources.keep, &sources.kv},
      {logits_, if_host(on_host || host.logits, sizes.logits_bytes), "logits"},
  };
  for (const Wish& wish : wishes) {
    const MemoryRequest request = {.bytes = wish.bytes,
                                   .what = wish.what,
                                   .node = place_.node,
                                   .shared = wish.kept,
                                   .small_shared = wish.kept && sources.keep_small,
                                   .lock = sources.lock,
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
  if (on_host) return {};
  if (auto taken = gpu_->allocate(sizes, place_.node, host); !taken) return taken;
  if (auto pinned = gpu_->pin(exchange_); !pinned) return pinned;
  return gpu_->pin(logits_);
}

Result<void> Rank::set_plan(Plan plan) {
  tasks_ = std::vector<TaskCounter>(plan.steps.size());
  plan_ = std::move(plan);
  return gpu_ == nullptr ? Result<void>() : gpu_->prepare(plan_);
}

ArenaAddresses Rank::arenas() const {
  const auto address = [](const NodeMemory& arena) {
    return reinterpret_cast<uintptr_t>(arena.data());
  };
  if (gpu_ != nullptr) {
    ArenaAddresses arenas = gpu_->arenas();
    if (exchange_.size_bytes() > 0) arenas.exchange = address(exchange_);
    if (logits_.size_bytes() > 0) arenas.logits = address(logits_);
    return arenas;
  }
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
