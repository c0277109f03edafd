#include "engine/runtime/rank.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/base/check.h"
#include "engine/pass/pass.h"

namespace lockstep {

RankNeeds together(const RankNeeds& one, const RankNeeds& other) {
  RankNeeds both;
  both.layout = one.layout || other.layout;
  both.attention_blocks = std::max(one.attention_blocks, other.attention_blocks);
  both.attention_units = std::max(one.attention_units, other.attention_units);
  both.prompt_blocks.wanted = std::max(one.prompt_blocks.wanted, other.prompt_blocks.wanted);
  const size_t most = one.prompt_blocks.tokens_most;
  const size_t other_most = other.prompt_blocks.tokens_most;
  both.prompt_blocks.tokens_most =
      most == 0 || other_most == 0 ? std::max(most, other_most) : std::min(most, other_most);
  if (one.deadline && other.deadline) both.deadline = std::max(*one.deadline, *other.deadline);
  return both;
}

Rank::Rank(const RankPlace& place, Workers& workers)
    : place_(place), counters_(place.cpus.size()), workers_(workers) {}

FoundCandidates Rank::candidates(size_t, const LogitDrawRequest&) const {
  CHECK(false, "this rank finds no candidates");
  return {};
}

Result<std::span<const float>> Rank::fetch_logits(size_t) {
  CHECK(false, "this rank's logits are at hand");
  return {};
}

Result<void> Rank::allocate(Plan plan, ArenaSources sources) {
  plan_ = std::move(plan);
  return take_memory(std::move(sources));
}

Result<void> Rank::bind(std::span<const ArenaAddresses> arenas, size_t first) {
  CHECK(first <= plan_.rank && plan_.rank < first + arenas.size(), "rank {} among {} from {} on",
        plan_.rank, arenas.size(), first);
  peers_.rank = plan_.rank - first;
  peers_.has_others = arenas.size() < plan_.rank_count;
  addresses_ = arenas[peers_.rank];
  if (addresses_[Arena::kLogits] == 0) {
    addresses_[Arena::kLogits] = arenas.front()[Arena::kLogits];
  }
  for (const ArenaAddresses& other : arenas) {
    peers_.distances.push_back(
        static_cast<std::ptrdiff_t>(other[Arena::kExchange] - addresses_[Arena::kExchange]));
  }
  return prepare();
}

Result<void> Rank::allocate_on_host(const HostBytes& bytes, ArenaSources sources) {
  struct HostArena {
    NodeMemory& memory;
    size_t bytes;
    std::string_view what;
    bool kept = false;
    std::optional<KeptArena>* source = nullptr;
  };
  const HostArena arenas[] = {
      {weights_, bytes.weights, "weights", sources.keep, &sources.weights},
      {scratch_, bytes.scratch, "activations"},
      {exchange_, bytes.exchange, "activations that ranks exchange"},
      {kv_, bytes.kv, "the KV cache", sources.keep, &sources.kv},
      {logits_, bytes.logits, "logits"},
  };
  for (const HostArena& arena : arenas) {
    const MemoryRequest request = {.bytes = arena.bytes,
                                   .what = arena.what,
                                   .node = place_.node,
                                   .shared = arena.kept,
                                   .small_shared = arena.kept && sources.keep_small,
                                   .lock = sources.lock,
                                   .workers = &workers_,
                                   .calls = sources.calls};
    const bool is_there = arena.source != nullptr && arena.source->has_value();
    if (is_there && (*arena.source)->bytes < arena.bytes) {
      return machine_refused("the memory that was kept for {} has {} bytes, not {}", arena.what,
                             (*arena.source)->bytes, arena.bytes);
    }
    auto memory = is_there ? NodeMemory::adopt(std::move(**arena.source), request)
                           : NodeMemory::allocate(request);
    if (!memory) return std::unexpected(memory.error());
    arena.memory = std::move(*memory);
  }
  return {};
}

ArenaAddresses Rank::host_arenas() const {
  return RankArenas<NodeMemory>{weights_, scratch_, exchange_, kv_, logits_}.addresses();
}

Pass Rank::make_pass(const PassInput& input, size_t worker) {
  return {.kv = plan_.kv,
          .device_areas = plan_.areas,
          .addresses = addresses_,
          .peers = peers_,
          .kernels = *input.kernels,
          .batch = *input.batch,
          .layout = *input.layout,
          .barrier = workers_.barrier(),
          .counters = counters_[worker],
          .worker = worker,
          .worker_count = workers_.count(),
          .panel_streams = input.panel_streams};
}

std::vector<const NodeMemory*> Rank::all_memory() const {
  return {&weights_, &scratch_, &exchange_, &kv_, &logits_};
}

}  // namespace lockstep
