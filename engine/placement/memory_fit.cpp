#include "engine/placement/memory_fit.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/checked_math.h"
#include "engine/base/log.h"
#include "engine/machine/arena_rules.h"
#include "engine/placement/gpu_traits.h"

namespace lockstep {
namespace {

// The share of the memory left beside the weights that an automatic context may take.
constexpr uint64_t kKvShareDivisor = 2;

// The share of the KV cache's memory that checkpoints of states get beside it, and how many for
// each sequence that runs at once: the ends of a prompt and of an answer at least; more than the
// points that a long prompt has are of no use to one conversation.
constexpr uint64_t kCheckpointShareDivisor = 8;
constexpr size_t kLeastCheckpoints = 2;
constexpr size_t kMostCheckpoints = 32;

// "12 MiB for weights, 3 MiB for the KV cache and 1 MiB for activations"
std::string needs_text(const ModelLayout& layout, size_t rank, bool with_cache) {
  const RankSizes& sizes = layout.sizes[rank];
  const auto need = [](uint64_t bytes, std::string_view what) {
    return fmt::format("{} MiB for {}", bytes >> 20U, what);
  };
  std::vector<std::string> needs = {need(sizes.weight_bytes, "weights")};
  if (with_cache) needs.push_back(need(sizes.kv_bytes, "the KV cache"));
  needs.push_back(need(sizes.activation_bytes() - sizes.hosted_bytes(), "activations"));
  if (layout.draft) {
    const RankSizes& draft = layout.draft->sizes[rank];
    needs.push_back(
        need(draft.total_bytes() - draft.hosted_bytes() - (with_cache ? 0 : draft.kv_bytes),
             with_cache ? "the draft model and its cache" : "the draft model"));
  }
  for (const MachinePlan::Need& other : other_needs(layout, rank)) {
    needs.push_back(need(other.bytes, other.what));
  }
  const std::string last = std::move(needs.back());
  needs.pop_back();
  return fmt::format("{} and {}", fmt::join(needs, ", "), last);
}

// The memory of everything that ranks may lie on.
struct Budgets {
  Budgets(const Machine& machine, const ModelLayout& layout)
      : memory(machine.topology, machine.memory), gpus(machine.topology, layout.nccl_bytes) {}

  MemoryBudget memory;
  GpuBudget gpus;
};

// An arena for which there is no space.
struct Misfit {
  size_t rank = 0;
  uint64_t bytes = 0;  // of the host's memory; 0: it is the GPU's that does not suffice
  std::string_view what = {};
};

// Whether an earlier process has left it.
bool is_held(const ModelLayout& layout, const HostArena& arena) {
  return (arena.use == HostArena::Use::kWeights && layout.weights_held) ||
         (arena.use == HostArena::Use::kKvCache && layout.kv_pages_held);
}

// The sizes of a layout, by rank: the model's, and those of one that drafts for it, if there is
// one.
struct LayoutSizes {
  std::vector<RankSizes> model;
  std::vector<RankSizes> draft = {};
};

LayoutSizes sizes_of(const ModelLayout& layout) {
  return {layout.sizes, layout.draft ? layout.draft->sizes : std::vector<RankSizes>()};
}

// Takes space for all arenas of these sizes that are not there already, in the order in which
// ranks take them in earnest.
std::optional<Misfit> take_all(const ModelLayout& layout, const LayoutSizes& all,
                               Budgets& budgets) {
  const std::vector<RankSizes>& sizes = all.model;
  for (size_t rank = 0; rank < layout.places.size(); ++rank) {
    const RankPlace& place = layout.places[rank];
    const RankDevice& device = device_of(place);
    if (!device.take_gpu_memory(place, sizes[rank], budgets.gpus)) return Misfit{.rank = rank};
    for (const HostArena& arena : device.host_arenas(sizes[rank])) {
      const uint64_t bytes = is_held(layout, arena) ? 0 : arena.bytes;
      if (!budgets.memory.take(place.node, bytes)) return Misfit{rank, bytes, arena.what};
    }
  }
  for (size_t rank = 0; rank < all.draft.size(); ++rank) {
    const RankPlace& place = layout.places[rank];
    const RankDevice& device = device_of(place);
    if (!device.take_gpu_memory(place, all.draft[rank], budgets.gpus)) return Misfit{.rank = rank};
    for (const HostArena& arena : device.host_arenas(all.draft[rank])) {
      if (!budgets.memory.take(place.node, arena.bytes)) {
        return Misfit{rank, arena.bytes, "the draft model"};
      }
    }
  }
  return std::nullopt;
}

// ": 60472 MiB for the KV cache fit neither ...", since what the pools and other memory have left
// may well be enough together; `budget` as the misfit has found it.
std::string shortage_text(const Misfit& misfit, const RankPlace& place,
                          const MemoryBudget& budget) {
  if (misfit.bytes == 0) return "";
  const uint64_t pools = budget.pool_bytes(place.node) + budget.giga_pool_bytes(place.node);
  const std::string arena = fmt::format("{} MiB for {}", misfit.bytes >> 20U, misfit.what);
  const uint64_t left_mib = budget.free_bytes(place.node) >> 20U;
  if (pools == 0) {
    return fmt::format(": {} find {} MiB left beside what is kept free", arena, left_mib);
  }
  return fmt::format(
      ": {} must lie together, but the pools of huge pages have {} MiB left and other memory {} "
      "MiB beside what is kept free",
      arena, pools >> 20U, left_mib);
}

// The bytes that a page of the cache takes of the ranks on a node.
struct PageShare {
  uint64_t bytes = 0;       // of all of them
  uint64_t bytes_most = 0;  // of one
  uint64_t rank_count = 0;
};

// The most pages, at most those wanted, whose caches fill pages of 1 GiB well enough to be given
// them. `pool_bytes`: of whole such pages.
uint64_t giga_pages(uint64_t pool_bytes, const PageShare& share, uint64_t wanted) {
  const uint64_t space = pool_bytes / kGigaPageBytes / share.rank_count * kGigaPageBytes;
  const auto is_given = [&](uint64_t pages) {
    const uint64_t bytes = pages * share.bytes_most;
    return deserves_giga_pages(bytes, round_up<uint64_t>(bytes, kGigaPageBytes));
  };
  const uint64_t pages = std::min(wanted, space / share.bytes_most);
  if (is_given(pages)) return pages;
  const uint64_t full = pages * share.bytes_most / kGigaPageBytes * kGigaPageBytes;
  const uint64_t filling = full / share.bytes_most;
  return is_given(filling) ? filling : 0;
}

// The most pages, at most those wanted, for which there is space on this node (-1: on all): in one
// of its pools, or in a share of its other memory.
uint64_t pages_here(const MemoryBudget& budget, int node, const PageShare& share, uint64_t wanted) {
  const uint64_t pool = budget.pool_bytes(node);
  // Each rank's cache begins a page of the pool.
  const uint64_t rounding = share.rank_count * kHugePageBytes;
  const uint64_t in_pool = (pool - std::min(pool, rounding)) / share.bytes;
  const uint64_t elsewhere = budget.free_bytes(node) / kKvShareDivisor / share.bytes;
  const uint64_t in_giga_pool = giga_pages(budget.giga_pool_bytes(node), share, wanted);
  return std::min(wanted, std::max({in_pool, elsewhere, in_giga_pool}));
}

// How many pages of the cache there is space for, and the rank that has none for another.
struct PageFit {
  size_t pages = 0;
  size_t rank = 0;
};

uint64_t host_cache_bytes(const RankPlace& place, const RankSizes& sizes) {
  const auto arenas = device_of(place).host_arenas(sizes);
  const auto cache = std::ranges::find(arenas, HostArena::Use::kKvCache, &HostArena::use);
  return cache == arenas.end() ? 0 : cache->bytes;
}

// As many of the pages wanted as the nodes have space for. `page_bytes`: of the host's memory, that
// a page takes of each rank.
PageFit node_pages(const ModelLayout& layout, const MemoryBudget& budget,
                   const std::vector<uint64_t>& page_bytes, PageFit wanted) {
  std::map<int, PageShare> shares;  // by node; -1: of all together
  std::map<int, size_t> first_ranks;
  for (size_t rank = 0; rank < layout.places.size(); ++rank) {
    const uint64_t bytes = page_bytes[rank];
    if (bytes == 0) continue;
    for (const int node : std::set<int>{-1, layout.places[rank].node}) {
      PageShare& share = shares[node];
      share.bytes += bytes;
      share.bytes_most = std::max(share.bytes_most, bytes);
      ++share.rank_count;
      first_ranks.emplace(node, rank);
    }
  }
  // Fewer pages may fill pages of 1 GiB on another node less well: until all nodes agree.
  for (size_t before = 0; before != wanted.pages;) {
    before = wanted.pages;
    for (const auto& [node, share] : shares) {
      const uint64_t pages = pages_here(budget, node, share, wanted.pages);
      if (pages < wanted.pages) wanted = {.pages = pages, .rank = first_ranks[node]};
    }
  }
  return wanted;
}

// Finds how long a sequence may get in a layout, and how many pages of cache that takes.
class ContextSearch {
 public:
  ContextSearch(const Model& model, const Settings& settings, const Machine& machine,
                ModelLayout& layout)
      : model_(model),
        settings_(settings),
        machine_(machine),
        layout_(layout),
        page_count_(model.graph, layout.plan_options.batch_tokens) {
    if (!model.graph.has_states()) return;
    for (const RankSizes& sizes : model_sizes(layout.plan_options, 1)) {
      page_bytes_ += sizes.kv_bytes;
      slot_bytes_ += sizes.state_bytes / layout.plan_options.state_slots;
    }
  }

  // Sizes the layout. Nothing is logged.
  Result<void> size() {
    auto pages = find_pages();
    if (!pages) return std::unexpected(std::move(pages).error());
    layout_.plan_options.kv_pages = *pages;
    layout_.plan_options.state_slots = state_slots(*pages);
    size_t& sequence_pages = layout_.plan_options.sequence_pages;
    if (sequence_pages > 0) sequence_pages = pages_for(layout_.context_tokens);
    layout_.sizes = model_sizes(layout_.plan_options, *pages);
    if (layout_.draft) set_draft_pages(*layout_.draft, {*pages, sequence_pages}, layout_.places);
    Budgets budgets(machine_, layout_);
    const auto misfit = take_all(layout_, sizes_of(layout_), budgets);
    if (!misfit) return {};
    const RankPlace& place = layout_.places[misfit->rank];
    return refusal(misfit->rank, /*with_cache=*/true,
                   fmt::format("where ranks share {} MiB{}", takeable_mib(place),
                               shortage_text(*misfit, place, budgets.memory)));
  }

 private:
  // Sets the layout's context; asked for, left by an earlier process, or what fits.
  Result<size_t> find_pages() {
    if (settings_.context_tokens != 0) return asked_pages();
    size_t pages = 0;
    if (layout_.kv_pages_held) {
      pages = *layout_.kv_pages_held;
    } else {
      auto fitting =
          fitting_pages(wanted_pages(settings_, page_count_, model_.trained_context_tokens));
      if (!fitting) return fitting;
      pages = *fitting;
    }
    layout_.context_tokens =
        std::min(model_.trained_context_tokens, page_count_.tokens_within(pages));
    return pages;
  }

  Result<size_t> asked_pages() {
    const size_t context = settings_.context_tokens;
    layout_.context_tokens = context;
    const size_t pages = wanted_pages(settings_, page_count_, context);
    const size_t least = page_count_.of_sequence(context);
    if (pages >= least) return pages;
    return invalid_input(
        "kv-pages is {}, but a sequence of {} tokens takes {} pages of {}. Use --kv-pages {} or "
        "--context {}",
        pages, context, least, kPageTokens, least,
        std::max(page_count_.tokens_within(pages), kPageTokens));
  }

  // As many pages as fit beside weights and activations; at most those wanted.
  Result<size_t> fitting_pages(size_t wanted) const {
    Budgets budgets(machine_, layout_);
    const auto misfit = take_all(layout_, sizes_of(layout_), budgets);
    PageFit found;
    if (!misfit) found = search_down(pages_beside_activations(wanted));
    if (page_count_.tokens_within(found.pages) > 0) return found.pages;
    const size_t rank = misfit ? misfit->rank : found.rank;
    const RankPlace& place = layout_.places[rank];
    return refusal(
        rank, /*with_cache=*/false,
        fmt::format("where {} MiB are available; {}", takeable_mib(place),
                    misfit ? "they do not fit" + shortage_text(*misfit, place, budgets.memory)
                           : "nothing is left for a context"));
  }

  // As many of the pages wanted as the nodes have space for beside what such a cache needs: what
  // attention takes of the activations grows with it.
  PageFit pages_beside_activations(size_t wanted) const {
    const auto page_bytes = page_bytes_of_ranks();
    PageFit found{.pages = wanted};
    size_t attended = 0;
    for (int round = 0; round < 2; ++round) {
      auto sizes = sizes_with(attended);
      for (RankSizes& own : sizes.model) own.kv_bytes = 0;
      for (RankSizes& own : sizes.draft) own.kv_bytes = 0;
      Budgets budgets(machine_, layout_);
      if (take_all(layout_, sizes, budgets)) break;
      found = node_pages(layout_, budgets.memory, page_bytes, found);
      attended = found.pages;
    }
    return found;
  }

  // The host's memory that a page takes of each rank: of both models, if there are two.
  std::vector<uint64_t> page_bytes_of_ranks() const {
    const LayoutSizes none = sizes_with(0);
    const LayoutSizes one = sizes_with(1);
    std::vector<uint64_t> bytes;
    for (size_t rank = 0; rank < layout_.places.size(); ++rank) {
      const RankPlace& place = layout_.places[rank];
      const auto of_page = [&](const std::vector<RankSizes>& more,
                               const std::vector<RankSizes>& less) {
        return host_cache_bytes(place, more[rank]) - host_cache_bytes(place, less[rank]);
      };
      bytes.push_back(of_page(one.model, none.model));
      if (layout_.draft) bytes.back() += of_page(one.draft, none.draft);
    }
    return bytes;
  }

  // As many of the pages wanted as all arenas have space with. Not quite the most where an arena
  // that grows with the pages drives another one out of a pool.
  PageFit search_down(PageFit wanted) const {
    if (wanted.pages == 0) return wanted;
    auto misfit = misfit_with(wanted.pages);
    if (!misfit) return wanted;
    PageFit found{.pages = 0, .rank = misfit->rank};
    size_t too_many = wanted.pages;
    while (found.pages + 1 < too_many) {
      const size_t pages = found.pages + (too_many - found.pages) / 2;
      misfit = misfit_with(pages);
      if (misfit) found.rank = misfit->rank;
      (misfit ? too_many : found.pages) = pages;
    }
    return found;
  }

  std::optional<Misfit> misfit_with(size_t pages) const {
    Budgets budgets(machine_, layout_);
    return take_all(layout_, sizes_with(pages), budgets);
  }

  // The sizes with so many pages, of which a sequence has no more than the model was trained for.
  LayoutSizes sizes_with(size_t pages) const {
    PlanOptions options = layout_.plan_options;
    options.state_slots = state_slots(pages);
    if (options.sequence_pages > 0) {
      options.sequence_pages =
          pages_for(std::min(model_.trained_context_tokens, page_count_.tokens_within(pages)));
    }
    return {model_sizes(options, pages), draft_sizes_with({pages, options.sequence_pages})};
  }

  std::vector<RankSizes> draft_sizes_with(const CachePages& pages) const {
    if (!layout_.draft) return {};
    return draft_sizes(*layout_.draft, pages, layout_.places);
  }

  std::vector<RankSizes> model_sizes(const PlanOptions& options, size_t pages) const {
    return layout_sizes(model_, layout_, options, pages);
  }

  size_t state_slots(size_t pages) const {
    if (slot_bytes_ == 0) return layout_.plan_options.state_slots;
    return state_slots_beside(pages * page_bytes_, slot_bytes_, settings_.sequence_count) +
           settings_.draft_slots();
  }

  uint64_t takeable_mib(const RankPlace& place) const {
    return device_of(place).takeable_bytes(machine_, place) >> 20U;
  }

  std::unexpected<Error> refusal(size_t rank, bool with_cache, const std::string& reason) const {
    const RankPlace& place = layout_.places[rank];
    return machine_refused("rank {} needs {} on {}, {}", layout_.first_rank() + rank,
                           needs_text(layout_, rank, with_cache),
                           device_of(place).memory_name(place), reason);
  }

  const Model& model_;
  const Settings& settings_;
  const Machine& machine_;
  ModelLayout& layout_;
  KvPageCount page_count_;
  uint64_t page_bytes_ = 0;  // of all ranks; as slot_bytes_, of a model with states
  uint64_t slot_bytes_ = 0;
};

}  // namespace

size_t pages_for(size_t tokens) {
  return (tokens + kPageTokens - 1) / kPageTokens;
}

size_t wanted_pages(const Settings& settings, const KvPageCount& count, size_t context_tokens) {
  return settings.kv_pages != 0 ? settings.kv_pages
                                : count.of_sequence(context_tokens) * settings.sequence_count;
}

size_t state_slots_beside(uint64_t kv_bytes, uint64_t slot_bytes, size_t sequence_count) {
  const uint64_t share = kv_bytes / kCheckpointShareDivisor / slot_bytes;
  return sequence_count + std::clamp<uint64_t>(share, kLeastCheckpoints * sequence_count,
                                               kMostCheckpoints * sequence_count);
}

std::vector<MachinePlan::Need> other_needs(const ModelLayout& layout, size_t rank) {
  const RankSizes& sizes = layout.sizes[rank];
  std::vector<MachinePlan::Need> needs = {{"its load", sizes.staging_bytes},
                                          {"recordings of passes", sizes.recording_bytes},
                                          {"sums over peer memory", sizes.mailbox_bytes},
                                          {"chunks of passes", sizes.layer_bytes},
                                          {"exchanges with other hosts", sizes.host_buffer_bytes},
                                          {"NCCL", layout.nccl_bytes}};
  if (layout.draft) {
    const RankSizes& draft = layout.draft->sizes[rank];
    needs.push_back({"the draft model's load, recordings and sums", draft.other_bytes()});
  }
  std::erase_if(needs, [](const MachinePlan::Need& need) { return need.bytes == 0; });
  return needs;
}

std::vector<RankSizes> layout_sizes(const Model& model, const ModelLayout& layout,
                                    const PlanOptions& options, size_t kv_pages) {
  auto sizes = rank_sizes(model, layout.split, options, kv_pages, layout.places, layout.gpus_linked,
                          layout.first_rank());
  if (!sizes.empty()) sizes.front().host_buffer_bytes = layout.host_buffer_bytes;
  return sizes;
}

std::optional<size_t> first_misfit(const ModelLayout& layout, const Machine& machine) {
  Budgets budgets(machine, layout);
  const auto misfit = take_all(layout, sizes_of(layout), budgets);
  if (!misfit) return std::nullopt;
  return misfit->rank;
}

Result<void> size_context(const Model& model, const Settings& settings, const Machine& machine,
                          ModelLayout& layout) {
  if (settings.context_tokens > model.trained_context_tokens) {
    spdlog::warn("the context of {} tokens is longer than the {} the model was trained for",
                 settings.context_tokens, model.trained_context_tokens);
  }
  return ContextSearch(model, settings, machine, layout).size();
}

bool fits_memory(const Model& model, const Settings& settings, const Machine& machine,
                 ModelLayout& layout) {
  return ContextSearch(model, settings, machine, layout).size().has_value();
}

}  // namespace lockstep
