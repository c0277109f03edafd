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

// The parts of a rank's page, or of its states of a slot: each of one size, one after another.
// Those of all pages or slots lie together.
struct PieceParts {
  struct Part {
    std::byte* begin = nullptr;  // of page or slot 0
    size_t bytes = 0;
  };
  std::vector<Part> parts;
  size_t bytes = 0;  // of all

  void add(std::byte* begin, size_t part_bytes) {
    parts.push_back({begin, part_bytes});
    bytes += part_bytes;
  }
};

PieceParts page_parts(const Rank& rank) {
  const KvLayout& kv = rank.plan().kv;
  PieceParts pieces;
  for (size_t part = 0; part < kv.part_count; ++part) {
    pieces.add(rank.addresses().at(kv.part(part)), kv.part_bytes);
  }
  return pieces;
}

// As the step has them that copies states in a pass.
PieceParts state_parts(const Rank& rank) {
  PieceParts pieces;
  for (const Step& step : rank.plan().steps) {
    const auto* const copies = std::get_if<CopyStatesStep>(&step.work);
    if (copies == nullptr) continue;
    for (const CopyStatesStep::Part& part : copies->parts) {
      pieces.add(reinterpret_cast<std::byte*>(rank.addresses().at(part.slots)),
                 part.slot_floats * sizeof(float));
    }
  }
  return pieces;
}

PieceParts parts_of(const Rank& rank, StoredKind kind) {
  return kind == StoredKind::kPage ? page_parts(rank) : state_parts(rank);
}

// Calls use(part, offset in the part, offset in the piece, bytes) for a worker's share of a piece.
template <typename Use>
void walk_share(const PieceParts& pieces, size_t worker, size_t worker_count, const Use& use) {
  const size_t begin = pieces.bytes * worker / worker_count;
  const size_t end = pieces.bytes * (worker + 1) / worker_count;
  size_t offset = 0;  // of the part
  for (const PieceParts::Part& part : pieces.parts) {
    const size_t from = std::max(offset, begin);
    const size_t to = std::min(offset + part.bytes, end);
    if (from < to) use(part, from - offset, from, to - from);
    offset += part.bytes;
  }
}

}  // namespace

std::vector<PageCopier::Part> RankPages::parts(StoredKind kind) const {
  std::vector<Part> parts;
  for (size_t rank = 0; rank < ranks_.count(); ++rank) {
    parts.push_back({parts_of(ranks_[rank], kind).bytes, ranks_[rank].place().node});
  }
  return parts;
}

template <typename Work>
void RankPages::run_workers(const Work& work) {
  std::vector<std::function<void(size_t)>> jobs;
  for (size_t index = 0; index < ranks_.count(); ++index) {
    jobs.emplace_back([&work, index](size_t worker) { work(index, worker); });
  }
  for (size_t rank = 0; rank < jobs.size(); ++rank) ranks_[rank].workers().begin(jobs[rank]);
  for (size_t rank = 0; rank < jobs.size(); ++rank) ranks_[rank].workers().finish();
}

template <typename Copy>
void RankPages::copy(StoredKind kind, uint32_t place, std::span<const std::span<std::byte>> others,
                     const Copy& copy) {
  std::vector<PieceParts> pieces;
  for (size_t rank = 0; rank < ranks_.count(); ++rank) {
    pieces.push_back(parts_of(ranks_[rank], kind));
  }
  run_workers([&](size_t rank, size_t worker) {
    std::byte* const other = others[rank].data();
    const auto use = [&](const PieceParts::Part& part, size_t within, size_t offset, size_t bytes) {
      copy(part.begin + place * part.bytes + within, other + offset, bytes);
    };
    walk_share(pieces[rank], worker, ranks_[rank].workers().count(), use);
  });
}

void RankPages::copy_out(StoredKind kind, uint32_t place,
                         std::span<const std::span<std::byte>> to) {
  copy(kind, place, to, [](const std::byte* own, std::byte* other, size_t bytes) {
    std::memcpy(other, own, bytes);
  });
}

void RankPages::copy_in(StoredKind kind, uint32_t place,
                        std::span<const std::span<std::byte>> from) {
  copy(kind, place, from, [](std::byte* own, const std::byte* other, size_t bytes) {
    std::memcpy(own, other, bytes);
  });
}

// A slot that a copy has written may be read by a later one: a worker reads what it wrote itself.
void RankPages::copy_states(std::span<const SlotCopy> copies) {
  run_workers([&](size_t rank, size_t worker) {
    const PieceParts pieces = state_parts(ranks_[rank]);
    const auto use = [&](const PieceParts::Part& part, size_t within, size_t, size_t bytes) {
      for (const SlotCopy& copy : copies) {
        std::memcpy(part.begin + copy.to * part.bytes + within,
                    part.begin + copy.from * part.bytes + within, bytes);
      }
    };
    walk_share(pieces, worker, ranks_[rank].workers().count(), use);
  });
}

std::unique_ptr<KeptPages> KeptPages::keep(Ranks& ranks, const EngineOptions& options, bool on_host,
                                           SchedulerLimits& limits, const Identify& identify) {
  if (options.cache_memory_bytes == 0 && options.cache_directory.empty()) return nullptr;
  Result<std::unique_ptr<KeptPages>> made;
  if (limits.whole_sequences) {
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
  const TierCounters& pages = tiers_->counters(StoredKind::kPage);
  statistics.pages_saved = pages.saved;
  statistics.memory_hits = pages.memory_hits;
  statistics.disk_hits = pages.file_hits;
  const TierCounters& states = tiers_->counters(StoredKind::kState);
  statistics.states_saved = states.saved;
  statistics.state_memory_hits = states.memory_hits;
  statistics.state_disk_hits = states.file_hits;
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
