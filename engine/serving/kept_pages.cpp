#include "engine/serving/kept_pages.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "engine/base/log.h"

namespace lockstep {
namespace {

// In an hour so many times the bound of the disk is written at most.
constexpr uint64_t kDiskQuotasHourly = 4;

// Calls use(place in the cache, offset in the page, bytes) for a worker's share of a rank's page,
// whose parts lie apart.
template <typename Use>
void walk_share(const Rank& rank, uint32_t page, size_t worker, size_t worker_count,
                const Use& use) {
  const KvLayout& kv = rank.plan().kv;
  size_t offset = kv.page_bytes() * worker / worker_count;
  const size_t end = kv.page_bytes() * (worker + 1) / worker_count;
  while (offset < end) {
    const size_t part = offset / kv.part_bytes;
    const size_t within = offset % kv.part_bytes;
    const size_t bytes = std::min(end - offset, kv.part_bytes - within);
    use(rank.addresses().at(kv.part(part)) + page * kv.part_bytes + within, offset, bytes);
    offset += bytes;
  }
}

}  // namespace

std::vector<PageCopier::Part> RankPages::parts() const {
  std::vector<Part> parts;
  for (size_t rank = 0; rank < ranks_.count(); ++rank) {
    parts.push_back({ranks_[rank].plan().kv.page_bytes(), ranks_[rank].place().node});
  }
  return parts;
}

template <typename Copy>
void RankPages::copy(uint32_t page, std::span<const std::span<std::byte>> others,
                     const Copy& copy) {
  std::vector<std::function<void(size_t)>> jobs;
  for (size_t index = 0; index < ranks_.count(); ++index) {
    Rank& rank = ranks_[index];
    const size_t workers = rank.workers().count();
    std::byte* const other = others[index].data();
    jobs.emplace_back([&rank, &copy, page, workers, other](size_t worker) {
      walk_share(rank, page, worker, workers, [&](std::byte* own, size_t offset, size_t bytes) {
        copy(own, other + offset, bytes);
      });
    });
  }
  for (size_t rank = 0; rank < jobs.size(); ++rank) ranks_[rank].workers().begin(jobs[rank]);
  for (size_t rank = 0; rank < jobs.size(); ++rank) ranks_[rank].workers().finish();
}

void RankPages::copy_out(uint32_t page, std::span<const std::span<std::byte>> to) {
  copy(page, to, [](const std::byte* own, std::byte* other, size_t bytes) {
    std::memcpy(other, own, bytes);
  });
}

void RankPages::copy_in(uint32_t page, std::span<const std::span<std::byte>> from) {
  copy(page, from, [](std::byte* own, const std::byte* other, size_t bytes) {
    std::memcpy(own, other, bytes);
  });
}

std::unique_ptr<KeptPages> KeptPages::keep(Ranks& ranks, const EngineOptions& options, bool on_host,
                                           SchedulerLimits& limits, const Identify& identify) {
  if (options.cache_memory_bytes == 0 && options.cache_directory.empty()) return nullptr;
  Result<std::unique_ptr<KeptPages>> made;
  if (limits.state_slots > 0) {
    made = machine_refused("the model keeps states of sequences");
  } else if (limits.whole_sequences) {
    made = machine_refused("the model's sequences share no pages");
  } else if (!on_host) {
    made = machine_refused("the KV cache is not in the host's memory");
  } else {
    made = make(ranks, options, limits, identify);
  }
  if (made) return std::move(*made);
  spdlog::warn("pages of the cache are not kept outside of it: {}", made.error().message);
  return nullptr;
}

Result<std::unique_ptr<KeptPages>> KeptPages::make(Ranks& ranks, const EngineOptions& options,
                                                   SchedulerLimits& limits,
                                                   const Identify& identify) {
  std::unique_ptr<KeptPages> kept(new KeptPages(ranks));
  std::unique_ptr<FileTier> files;
  if (!options.cache_directory.empty()) {
    auto identity = identify();
    if (!identity) return std::unexpected(identity.error());
    auto opened =
        FileTier::open({.directory = options.cache_directory,
                        .bytes_max = options.cache_disk_bytes,
                        .identity = std::move(*identity),
                        .hourly_bytes_max = kDiskQuotasHourly * options.cache_disk_bytes});
    if (!opened && options.cache_memory_bytes == 0) return std::unexpected(opened.error());
    if (opened) {
      files = std::move(*opened);
      limits.cache_secret = files->hash_secret();
      kept->disk_bytes_max_ = options.cache_disk_bytes;
    } else {
      spdlog::warn("pages of the cache are kept in no file: {}", opened.error().message);
    }
  }
  auto made = PageTiers::make(kept->rank_pages_, options.cache_memory_bytes, std::move(files));
  if (!made) return std::unexpected(made.error());
  kept->tiers_ = std::move(*made);
  limits.page_store = kept->tiers_.get();
  const FileTier::Statistics found = kept->tiers_->file_statistics();
  spdlog::info(
      "pages that make way in the KV cache: {} MiB of memory; {} files of {} MiB are there",
      kept->tiers_->memory_bytes() >> 20U, found.records, found.bytes >> 20U);
  return kept;
}

TierStatistics KeptPages::statistics() const {
  TierStatistics statistics;
  statistics.memory_bytes = tiers_->memory_bytes();
  statistics.memory_bytes_used = tiers_->memory_bytes_used();
  statistics.pages_saved = tiers_->counters().saved;
  statistics.memory_hits = tiers_->counters().memory_hits;
  statistics.disk_hits = tiers_->counters().file_hits;
  const FileTier::Statistics files = tiers_->file_statistics();
  statistics.disk_bytes_max = disk_bytes_max_;
  statistics.disk_bytes = files.bytes;
  statistics.disk_bytes_written = files.bytes_written;
  statistics.disk_bytes_read = files.bytes_read;
  statistics.disk_evictions = files.evictions;
  statistics.disk_write_failures = files.write_failures;
  statistics.disk_unusable = files.unusable;
  statistics.disk_writes_left_out = files.writes_left_out;
  return statistics;
}

}  // namespace lockstep
