#include "engine/serving/rank_report.h"

#include <algorithm>

#include "engine/base/log.h"
#include "engine/machine/page_placement.h"
#include "engine/placement/gpu_traits.h"

namespace lockstep {
namespace {

void add_pages(const NodeMemory& memory, PageBytes& pages) {
  switch (memory.page_kind()) {
    case PageKind::kHuge1GiB:
      pages.huge_1gib += memory.size_bytes();
      return;
    case PageKind::kHuge2MiB:
      pages.huge_2mib += memory.size_bytes();
      return;
    case PageKind::kTransparent:
    case PageKind::kSmall: {
      const uint64_t huge = std::min<uint64_t>(
          memory.size_bytes(), huge_bytes({memory.data(), memory.size_bytes()}).value_or(0));
      pages.transparent += huge;
      pages.small += memory.size_bytes() - huge;
      return;
    }
  }
}

// Adds what the rank of a smaller model at the same place takes.
void add_draft(const Rank& rank, RankStatistics& statistics) {
  const Plan& plan = rank.plan();
  statistics.weight_bytes += plan.weight_bytes;
  statistics.kv_bytes += plan.kv.size_bytes();
  statistics.scratch_bytes += plan.scratch_bytes + plan.exchange_bytes + plan.logits_bytes;
  statistics.host_scratch_bytes += rank.host_scratch_bytes();
  for (const NodeMemory* memory : rank.all_memory()) add_pages(*memory, statistics.pages);
}

RankStatistics examine(size_t index, const Ranks& ranks, const Topology& topology,
                       const Ranks* draft) {
  const Rank& rank = ranks[index];
  const Plan& plan = rank.plan();
  RankStatistics statistics;
  statistics.rank = static_cast<uint32_t>(plan.rank);
  statistics.node = rank.place().node;
  statistics.worker_count = static_cast<uint32_t>(rank.place().cpus.size());
  statistics.weight_bytes = plan.weight_bytes;
  statistics.kv_bytes = plan.kv.size_bytes();
  statistics.scratch_bytes = plan.scratch_bytes + plan.exchange_bytes + plan.logits_bytes;
  statistics.host_scratch_bytes = rank.host_scratch_bytes();
  for (const NodeMemory* memory : rank.all_memory()) add_pages(*memory, statistics.pages);
  if (draft != nullptr) add_draft((*draft)[index], statistics);
  if (const auto* const gpu = std::get_if<GpuPlace>(&rank.place().device)) {
    statistics.gpu = gpu->index;
    statistics.gpu_title = gpu_title(gpu_at(topology, gpu->index));
  }
  if (statistics.node < 0 || rank.weights().size_bytes() == 0) {
    statistics.wrong_node_bytes = 0;
    return statistics;
  }
  const NodeMemory& weights = rank.weights();
  const auto placement = examine_placement({weights.data(), weights.size_bytes()}, statistics.node);
  if (!placement) {
    spdlog::warn("where the weights of rank {} lie cannot be verified: {}", index,
                 placement.error().message);
    return statistics;
  }
  statistics.wrong_node_bytes = placement->wrong_bytes;
  return statistics;
}

// `is_alone`: it is the only rank.
void log_rank(size_t index, const RankStatistics& rank, const RankPlace& place, bool is_alone) {
  constexpr unsigned kMiB = 20;
  const PageBytes& pages = rank.pages;
  if (rank.gpu) {
    spdlog::info(
        "rank {}: {}, driven from node {}, {} MiB of weights, {} MiB KV cache, {} MiB activations",
        index, rank.gpu_title, rank.node, rank.weight_bytes >> kMiB, rank.kv_bytes >> kMiB,
        rank.scratch_bytes >> kMiB);
    return;
  }
  spdlog::info(
      "rank {}: node {}, {} workers{}, {} MiB of weights, {} MiB KV cache, {} MiB activations; "
      "pages of 1 GiB {} MiB, of 2 MiB {} MiB, transparent {} MiB, of 4 KiB {} MiB",
      index, rank.node, rank.worker_count, place.cpus.front() < 0 ? " (not pinned to cores)" : "",
      rank.weight_bytes >> kMiB, rank.kv_bytes >> kMiB, rank.scratch_bytes >> kMiB,
      pages.huge_1gib >> kMiB, pages.huge_2mib >> kMiB, pages.transparent >> kMiB,
      pages.small >> kMiB);
  if (rank.wrong_node_bytes.value_or(0) == 0) return;
  spdlog::warn(
      "{} MiB of the weights of rank {} lie on another node than {}: every token reads them from "
      "there. Free memory on node {}{}",
      (*rank.wrong_node_bytes + (1U << kMiB) - 1) >> kMiB, index, rank.node, rank.node,
      is_alone ? "" : " or give the rank a smaller share with --shares");
}

}  // namespace

RankReport::RankReport(Ranks& ranks, const Topology& topology, const Ranks* draft) : ranks_(ranks) {
  for (size_t rank = 0; rank < ranks.count(); ++rank) {
    placed_.push_back(examine(rank, ranks, topology, draft));
    log_rank(ranks[rank].plan().rank, placed_.back(), ranks[rank].place(), ranks.count() == 1);
  }
}

std::vector<RankStatistics> RankReport::statistics() const {
  std::vector<RankStatistics> all = placed_;
  for (size_t index = 0; index < all.size(); ++index) {
    Rank& rank = ranks_[index];
    uint64_t exchange_ticks = 0;
    uint64_t exchange_ns = 0;
    uint64_t wait_ticks = 0;
    uint64_t gpu_ticks = 0;
    const size_t workers = rank.workers().count();
    for (size_t worker = 0; worker < workers; ++worker) {
      const WorkerCounters& counters = rank.counters(worker);
      exchange_ticks += counters.exchange_ticks.value();
      exchange_ns += counters.exchange_ns.value();
      wait_ticks += counters.wait_ticks.value();
      gpu_ticks += counters.gpu_ticks.value();
      all[index].exchange_bytes += counters.exchange_bytes.value();
    }
    all[index].exchange_seconds = clock_.seconds(exchange_ticks / workers) +
                                  1e-9 * static_cast<double>(exchange_ns / workers);
    all[index].wait_seconds = clock_.seconds(wait_ticks / workers);
    all[index].gpu_seconds = clock_.seconds(gpu_ticks);  // one worker drives a GPU
  }
  return all;
}

}  // namespace lockstep
