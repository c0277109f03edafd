#include "engine/runtime/gpu/gpu_group.h"

#include <algorithm>
#include <utility>

#include "engine/base/log.h"
#include "engine/runtime/gpu/gpu_trials.h"

namespace lockstep {

GpuGroup::GpuGroup(std::vector<GpuRank*> ranks, Division division)
    : ranks_(std::move(ranks)), division_(division) {}

std::vector<GpuExecutor*> GpuGroup::executors() const {
  std::vector<GpuExecutor*> executors;
  for (GpuRank* rank : ranks_) executors.push_back(&rank->executor());
  return executors;
}

// A link that only seems to work fails the load: NCCL would use it as well. Layers are handed over
// through the host then.
Result<void> GpuGroup::reach() {
  if (is_linked()) {
    const std::vector<GpuExecutor*> gpus = executors();
    reached_ = GpuExecutor::reach(gpus);
    if (reached_) {
      if (auto sound = GpuExecutor::try_links(gpus); !sound) {
        const bool are_layers = division_ == Division::kByLayers;
        if (!are_layers && gpus.front()->settings().nccl_peer_access) return sound;
        reached_ = std::move(sound);
      }
    }
  }
  // Others that write some of the logits have to reach them.
  const bool has_all_logits =
      division_ == Division::kByLayers || (ranks_.size() == 1 && !is_among_processors());
  for (GpuRank* rank : ranks_) {
    rank->set_host_share(
        {.exchange = is_among_processors(), .logits = !has_all_logits && !shares_memory()});
  }
  return {};
}

// Processors reach none of the GPUs' memory: with those they exchange by the host.
Result<void> GpuGroup::connect(const Plan& sizes) {
  if (!is_linked()) return {};
  if (division_ == Division::kByLayers) {
    if (!reached_) spdlog::info("layers' rows go through the host: {}", reached_.error().message);
    std::vector<int> nodes;
    for (const GpuRank* rank : ranks_) nodes.push_back(rank->place().node);
    auto borders = GpuExecutor::connect_layers(executors(), sizes, shares_memory(), nodes);
    if (!borders) return std::unexpected(borders.error());
    borders_ = std::move(*borders);
    return {};
  }
  auto joined = GpuExecutor::connect(executors(), sizes, reached_);
  if (!joined) return std::unexpected(joined.error());
  nccl_ = std::move(*joined);
  return choose_shots(sizes);
}

void GpuGroup::keep_logits_apart() {
  for (GpuRank* rank : ranks_) rank->set_host_share({});
}

Result<void> GpuGroup::connect_hosts(HostGroup& group, std::span<const Plan> plans,
                                     const HostRanks& ranks) {
  const std::vector<GpuExecutor*> own = executors();
  std::vector<int> gpus;
  for (GpuExecutor* executor : own) gpus.push_back(executor->device().index());
  nccl_hosts_ = std::make_unique<NcclAmongHosts>(own.front()->platform(), std::move(gpus), ranks);
  if (auto joined = nccl_hosts_->join(group, GpuExecutor::kJoinDeadline); !joined) return joined;
  return GpuExecutor::connect_hosts(own, plans, ranks.own().begin, *nccl_hosts_);
}

Result<void> GpuGroup::recover() {
  for (GpuExecutor* executor : executors()) {
    if (auto recovered = executor->recover(); !recovered) return recovered;
  }
  return {};
}

Result<void> GpuGroup::join_again(HostGroup& group) {
  if (nccl_hosts_ == nullptr) return {};
  if (auto joined = nccl_hosts_->join(group, GpuExecutor::kJoinDeadline); !joined) return joined;
  return exchange_first();
}

Result<void> GpuGroup::run(const std::function<Result<void>(size_t rank)>& job) {
  std::vector<Result<void>> results(ranks_.size());
  std::vector<std::function<void(size_t)>> jobs;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    jobs.emplace_back([&job, &results, rank](size_t) { results[rank] = job(rank); });
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank]->workers().begin(jobs[rank]);
  for (GpuRank* rank : ranks_) rank->workers().finish();
  return outcome_of(results, ranks_);
}

// Sums of two ranks send as much either way. That no plan is made yet is what leaves the memory of
// activations to the trial; recordings come after.
Result<void> GpuGroup::choose_shots(const Plan& sizes) {
  const std::vector<GpuExecutor*> gpus = executors();
  if (gpus.size() <= 2 || !shares_memory()) return {};
  size_t bytes_max = exchanged_floats_max(sizes) * sizeof(float);
  for (const GpuExecutor* gpu : gpus) bytes_max = std::min(bytes_max, gpu->timed_sum_bytes_max());
  if (bytes_max < kGpuSumTrialBytesMin) return {};
  std::vector<std::vector<GpuSumRounds>> rounds(gpus.size());
  auto timed = run([&](size_t rank) -> Result<void> {
    auto own = gpus[rank]->time_sums(bytes_max);
    if (!own) return std::unexpected(std::move(own).error());
    rounds[rank] = std::move(*own);
    return {};
  });
  if (!timed) return timed;
  const std::vector<GpuSumTime> times = slowest_medians(rounds);
  const size_t one_shot_max = one_shot_bytes_max(times);
  for (GpuExecutor* gpu : gpus) gpu->set_one_shot_bytes_max(one_shot_max);
  spdlog::info("sums of up to {} KiB between {} GPUs take one shot, larger ones two: {}",
               one_shot_max >> 10U, gpus.size(), sum_times_text(times));
  return {};
}

Result<void> GpuGroup::exchange_first() {
  NcclRanks* const joined = nccl_hosts_ != nullptr ? nccl_hosts_.get() : nccl_.get();
  if (joined == nullptr) return {};
  auto exchanged = run([&](size_t rank) {
    auto own = ranks_[rank]->executor().exchange_first();
    if (!own) joined->abort(own.error());
    return own;
  });
  if (exchanged) joined->set_deadline(ranks_.front()->executor().settings().sum_deadline());
  return exchanged;
}

}  // namespace lockstep
