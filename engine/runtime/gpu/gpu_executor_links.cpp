// How a GPU reaches those of the other ranks: made once, before it gets its plan.
#include <new>
#include <utility>

#include "engine/base/log.h"
#include "engine/runtime/gpu/gpu_executor.h"

namespace lockstep {

Result<void> GpuExecutor::take_mailbox(size_t rank, size_t rank_count) {
  GpuPeers& peers = links_.peers.emplace();
  peers.rank = rank;
  peers.rank_count = rank_count;
  peers.deadline_ns = static_cast<uint64_t>(settings().sum_deadline().count());
  const size_t bytes = gpu_mailbox_bytes(rank_count, peers.channel_count);
  auto mailbox = device_->allocate(bytes, "what ranks send to one another");
  if (!mailbox) return std::unexpected(mailbox.error());
  mailbox_ = std::move(*mailbox);
  auto memory = NodeMemory::allocate({.bytes = sizeof(Report), .what = "a GPU's report"});
  if (!memory) return std::unexpected(memory.error());
  report_ = std::move(*memory);
  auto* const report = new (report_.data()) Report;
  peers.failure = &report->failure;
  peers.spent_ns = &report->spent_ns;
  peers.waiting = &report->waiting;
  if (auto pinned = pin(report_); !pinned) return pinned;
  if (auto used = device_->use(); !used) return used;
  auto cleared = stream_->clear(mailbox_.data(), bytes);
  return cleared ? stream_->wait(settings().pass_deadline) : cleared;
}

Result<void> GpuExecutor::take_link(NcclRanks& joined, size_t rank, size_t rank_count,
                                    size_t floats) {
  const size_t bytes = gpu_nccl_received_floats(rank_count, floats) * sizeof(float);
  auto received = device_->allocate(bytes, "what other ranks send");
  if (!received) return std::unexpected(received.error());
  received_ = std::move(*received);
  links_.nccl = {&joined, rank, rank_count, reinterpret_cast<float*>(received_.data())};
  return {};
}

Result<void> GpuExecutor::reach(std::span<GpuExecutor* const> ranks) {
  if (!ranks.front()->platform_.peer_access) {
    return machine_refused("the GPUs are not to reach one another's memory");
  }
  for (GpuExecutor* rank : ranks) {
    for (const GpuExecutor* other : ranks) {
      if (auto reached = rank->device_->reach(other->device_->index()); !reached) return reached;
    }
  }
  return {};
}

Result<void> GpuExecutor::try_links(std::span<GpuExecutor* const> ranks) {
  std::vector<GpuDevice*> devices;
  for (GpuExecutor* rank : ranks) devices.push_back(rank->device_.get());
  return try_gpu_links(devices, ranks.front()->settings().pass_deadline);
}

Result<void> GpuExecutor::take_mailboxes(std::span<GpuExecutor* const> ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (auto taken = ranks[rank]->take_mailbox(rank, ranks.size()); !taken) return taken;
  }
  for (GpuExecutor* rank : ranks) {
    for (size_t other = 0; other < ranks.size(); ++other) {
      rank->links_.peers->mailboxes[other] = ranks[other]->mailbox_.data();
    }
  }
  return {};
}

Result<std::unique_ptr<NcclRanks>> GpuExecutor::connect(std::span<GpuExecutor* const> ranks,
                                                        const Plan& sizes,
                                                        const Result<void>& reached) {
  const GpuPlatform& platform = ranks.front()->platform_;
  if (reached) {
    if (auto taken = take_mailboxes(ranks); !taken) return std::unexpected(taken.error());
  }
  if (!absence_of_nccl(&platform).empty()) {
    if (!reached) return std::unexpected(reached.error());
    return nullptr;
  }
  const size_t floats = exchanged_floats_max(sizes);
  const GpuSumWay way = platform.sum_way({.rank_count = ranks.size(),
                                          .bytes = floats * sizeof(float),
                                          .peer_access = reached.has_value(),
                                          .nccl = true});
  if (way != GpuSumWay::kNccl) return nullptr;
  std::vector<int> gpus;
  for (const GpuExecutor* rank : ranks) gpus.push_back(rank->device_->index());
  // NCCL takes this from its environment alone, when it first joins GPUs.
  if (!platform.settings.nccl_peer_access) ::setenv("NCCL_P2P_DISABLE", "1", 1);
  auto joined = platform.join(gpus, kJoinDeadline);
  if (!joined && reached) {
    spdlog::warn("large sums go over peer memory as well: {}", joined.error().message);
    return nullptr;
  }
  if (!joined) return joined;
  if (!reached) spdlog::info("sums go by NCCL: {}", reached.error().message);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    auto taken = ranks[rank]->take_link(**joined, rank, ranks.size(), floats);
    if (!taken) return std::unexpected(std::move(taken).error());
  }
  return joined;
}

Result<void> GpuExecutor::connect_hosts(std::span<GpuExecutor* const> ranks,
                                        std::span<const Plan> plans, size_t first,
                                        NcclRanks& joined) {
  const size_t floats = exchanged_floats_max(plans.front());
  std::vector<Range> columns;
  for (const Plan& plan : plans) columns.push_back(logit_columns(plan));
  for (size_t index = 0; index < ranks.size(); ++index) {
    auto taken = ranks[index]->take_link(joined, first + index, plans.size(), floats);
    if (!taken) return taken;
    ranks[index]->links_.logit_columns = columns;
  }
  return {};
}

size_t handed_slots(const Plan& plan) {
  return plan.chunk_tokens < plan.batch_tokens ? kHandedSlots : 1;
}

size_t handed_bytes(const Plan& plan, const HandOverStep& step) {
  return plan.chunk_tokens * step.output_stride * sizeof(float);
}

Result<std::vector<std::unique_ptr<GpuBorder>>> GpuExecutor::connect_layers(
    std::span<GpuExecutor* const> ranks, const Plan& sizes, bool reached,
    std::span<const int> nodes) {
  std::vector<std::unique_ptr<GpuBorder>> borders;
  for (const Step& step : sizes.steps) {
    const auto* const hand_over = std::get_if<HandOverStep>(&step.work);
    if (hand_over == nullptr) continue;
    GpuExecutor& giver = *ranks[hand_over->giver];
    GpuExecutor& taker = *ranks[hand_over->taker];
    auto border = GpuBorder::make(
        {hand_over->giver, giver.device_.get()}, {hand_over->taker, taker.device_.get()},
        handed_slots(sizes), handed_bytes(sizes, *hand_over), reached, nodes[hand_over->taker]);
    if (!border) return std::unexpected(border.error());
    giver.given_.border = taker.taken_.border = border->get();
    borders.push_back(std::move(*border));
  }
  return borders;
}

}  // namespace lockstep
