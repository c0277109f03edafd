#include "engine/model/weight_loader.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/checked_math.h"
#include "engine/base/log.h"
#include "engine/machine/direct_file.h"
#include "engine/machine/read_queue.h"
#include "engine/model/gpu_weight_sink.h"
#include "engine/model/load_extents.h"
#include "engine/model/rank_loader.h"
#include "engine/model/weight_sink.h"

namespace lockstep {
namespace {

// All ranks' buffers together. 16 reads of 4 MiB keep the fastest disks busy; many ranks share
// them, so theirs may be smaller.
constexpr size_t kBuffersBytes = 128U << 20U;
constexpr size_t kBufferBytesMax = 4U << 20U;
constexpr size_t kBufferBytesMin = 1U << 20U;
constexpr size_t kBuffersMax = 16;  // of a rank
constexpr size_t kBuffersMin = 2;   // one is read while the other is packed

// Panels that are wider than this are read in parts: a buffer holds at least one row. But for GPUs,
// which take whole panels.
constexpr size_t kPanelBytesMax = 32U << 20U;

bool takes_whole_panels(const LoadTarget& rank) {
  return rank.sink != nullptr && rank.sink->takes_whole_panels();
}

std::vector<RankToLoad> ranks_to_load(std::span<const LoadTarget> ranks) {
  std::vector<RankToLoad> result;
  for (const LoadTarget& rank : ranks) result.push_back({&rank.plan, takes_whole_panels(rank)});
  return result;
}

// The largest stretch that has to fit into a buffer as a whole.
size_t least_extent_bytes(const Graph& graph, bool whole_panels) {
  size_t least = 0;
  for (const Weight& weight : graph.weights()) {
    const size_t unit = load_unit_bytes(weight);
    const size_t panel = unit * std::min(weight.rows, kPanelRows);
    least = std::max(least, whole_panels || panel <= kPanelBytesMax ? panel : unit);
  }
  return least;
}

class Load {
 public:
  Load(const GgufFile& file, const Graph& graph, std::span<const LoadTarget> ranks,
       std::atomic<uint64_t>& bytes_done, const LoadOptions& options)
      : file_(file),
        ranks_(ranks),
        options_(options),
        calls_(options.calls != nullptr ? *options.calls : real_disk_calls()),
        state_(bytes_done, options.from_cache),
        places_{.graph = graph} {
    for (const LoadTarget& rank : ranks_) {
      places_.sinks.push_back(rank.sink != nullptr ? rank.sink : &host_sink_);
      places_.arenas.push_back(rank.weights);
    }
  }

  ~Load() { (void)finish_sinks(); }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  Result<LoadReport> run() {
    if (auto unchanged = check_unchanged(); !unchanged) return std::unexpected(unchanged.error());
    if (auto prepared = prepare(); !prepared) return std::unexpected(prepared.error());
    const auto start = std::chrono::steady_clock::now();
    work();
    if (auto finished = finish_sinks(); !finished) state_.fail(finished.error());
    if (auto error = state_.error()) return std::unexpected(std::move(*error));
    if (auto unchanged = check_unchanged(); !unchanged) return std::unexpected(unchanged.error());
    for (const auto& part : places_.files) part->drop_rest();
    return report(std::chrono::steady_clock::now() - start);
  }

 private:
  // All of them; harmless where nothing was begun.
  Result<void> finish_sinks() {
    Result<void> finished;
    for (WeightSink* sink : places_.sinks) {
      auto result = sink->finish();
      if (finished) finished = std::move(result);
    }
    return finished;
  }

  Result<void> check_unchanged() const {
    for (const FileReader& reader : file_.readers()) {
      if (auto unchanged = reader.check_unchanged(); !unchanged) return unchanged;
    }
    return {};
  }

  // Opens the files, cuts the extents and makes the queues.
  Result<void> prepare() {
    size_t block = 1;
    for (const FileReader& reader : file_.readers()) {
      places_.files.push_back(std::make_unique<DirectFile>(reader, options_.direct, calls_));
      block = std::max(block, places_.files.back()->block_bytes());
    }
    const size_t per_rank = kBuffersBytes / ranks_.size();
    const size_t wanted = options_.buffer_bytes != 0 ? options_.buffer_bytes
                                                     : std::clamp(per_rank / kBuffersMax,
                                                                  kBufferBytesMin, kBufferBytesMax);
    // Beside its stretch a buffer holds what is left of the first and the last block.
    const size_t ends = 2 * block;
    const bool whole_panels = std::ranges::any_of(ranks_, takes_whole_panels);
    const size_t least = round_up(least_extent_bytes(places_.graph, whole_panels) + ends, block);
    const size_t extent_bytes = std::max(round_up(wanted, block), least) - ends;
    extents_ = cut_extents(file_, places_.graph, ranks_to_load(ranks_), extent_bytes);
    const size_t largest = largest_extent();
    for (WeightSink* sink : places_.sinks) {
      if (auto begun = sink->begin(largest); !begun) return begun;
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (auto made = make_loader(rank, round_up(largest + ends, block)); !made) return made;
    }
    return {};
  }

  Result<void> make_loader(size_t rank, size_t buffer_bytes) {
    const std::vector<LoadExtent>& extents = extents_.by_rank[rank];
    const size_t per_rank = kBuffersBytes / ranks_.size();
    const size_t count = std::clamp(per_rank / buffer_bytes, kBuffersMin, kBuffersMax);
    auto queue =
        ReadQueue::make(places_.files,
                        {.buffer_count = std::max<size_t>(1, std::min(count, extents.size())),
                         .buffer_bytes = buffer_bytes,
                         .io_uring = options_.io_uring,
                         .node = ranks_[rank].node,
                         .workers = &ranks_[rank].workers},
                        calls_);
    if (!queue) return std::unexpected(queue.error());
    GpuMemory pinned = pin(**queue, extents);
    loaders_.push_back(std::make_unique<RankLoader>(places_, extents, std::move(*queue),
                                                    std::move(pinned), state_));
    return {};
  }

  // If a GPU takes any of the extents, by one that does, for all. Refused, it goes without.
  GpuMemory pin(const ReadQueue& queue, std::span<const LoadExtent> extents) {
    for (const LoadExtent& extent : extents) {
      for (const ExtentOwner& owner : extent.owners) {
        auto pinned = places_.sinks[owner.rank]->pin(queue.memory());
        if (!pinned) {
          not_pinned_ = pinned.error().message;
          return {};
        }
        if (pinned->size_bytes() > 0) return std::move(*pinned);
      }
    }
    return {};
  }

  size_t largest_extent() const {
    size_t largest = 0;
    for (const auto& extents : extents_.by_rank) {
      for (const LoadExtent& extent : extents) largest = std::max(largest, extent.bytes);
    }
    return largest;
  }

  // All ranks at the same time. Once the first has begun, nothing here may throw.
  void work() {
    std::vector<std::function<void(size_t)>> jobs;
    for (const auto& loader : loaders_) {
      jobs.emplace_back([&loader = *loader](size_t) { loader.work(); });
    }
    for (size_t rank = 0; rank < jobs.size(); ++rank) ranks_[rank].workers.begin(jobs[rank]);
    for (const LoadTarget& rank : ranks_) rank.workers.finish();
  }

  LoadReport report(std::chrono::duration<double> elapsed) const {
    LoadReport report = {.bytes = extents_.bytes,
                         .seconds = elapsed.count(),
                         .io_uring = true,
                         .direct = true,
                         .registered = true,
                         .dropped_bytes = state_.dropped_bytes(),
                         .cached_bytes = state_.cached_bytes(),
                         .not_pinned = not_pinned_};
    for (const auto& loader : loaders_) {
      report.io_uring &= loader->queue().has_ring();
      if (report.ring_error == 0) report.ring_error = loader->queue().ring_error();
      report.registered &= loader->queue().has_registered_buffers();
      report.buffer_bytes += loader->queue().size_bytes();
    }
    for (const auto& part : places_.files) report.direct &= part->is_direct();
    return report;
  }

  const GgufFile& file_;
  std::span<const LoadTarget> ranks_;
  const LoadOptions& options_;
  DiskCalls& calls_;
  LoadState state_;
  HostWeightSink host_sink_;
  LoadPlaces places_;
  LoadExtents extents_;
  std::string not_pinned_;
  std::vector<std::unique_ptr<RankLoader>> loaders_;  // by rank
};

void log_report(const GgufFile& file, const LoadReport& report) {
  spdlog::info("read {} MiB of weights in {:.2f} s, {:.0f} MB/s, with {}, {}", report.bytes >> 20U,
               report.seconds, static_cast<double>(report.bytes) / 1e6 / report.seconds,
               report.io_uring ? "io_uring" : "pread",
               report.direct ? "past the page cache" : "through the page cache");
  if (report.cached_bytes > 0) {
    spdlog::info("{} MiB of them lay in the page cache and were copied from there",
                 report.cached_bytes >> 20U);
  }
  if (report.ring_error != 0) {
    spdlog::info(
        "io_uring was refused: {}. The load is faster with it: allow io_uring_setup, _enter and "
        "_register in the container's or service's filter of system calls, and see that "
        "kernel.io_uring_disabled is 0",
        std::strerror(report.ring_error));
  }
  if (!report.direct) {
    spdlog::info(
        "{}: its file system has no direct reads (O_DIRECT): {} MiB of it were read into the page "
        "cache and dropped again",
        file.parts().front().string(), report.dropped_bytes >> 20U);
  }
  if (!report.not_pinned.empty()) {
    spdlog::info("weights were copied to GPUs through a small buffer, which is slower: {}",
                 report.not_pinned);
  }
}

}  // namespace

uint64_t bytes_to_load(const GgufFile& file, const Graph& graph,
                       std::span<const LoadTarget> ranks) {
  return cut_extents(file, graph, ranks_to_load(ranks), kBufferBytesMax).bytes;
}

size_t gpu_staging_bytes_max(const Graph& graph) {
  return GpuWeightSink::staging_bytes(std::max(kBufferBytesMax, least_extent_bytes(graph, true)));
}

Result<LoadReport> load_weights(const GgufFile& file, const Graph& graph,
                                std::span<const LoadTarget> ranks,
                                std::atomic<uint64_t>& bytes_done, const LoadOptions& options) {
  CHECK(!ranks.empty(), "a load for no rank");
  try {
    auto report = Load(file, graph, ranks, bytes_done, options).run();
    if (report) log_report(file, *report);
    return report;
  } catch (const std::bad_alloc&) {
    return std::unexpected(Error{ErrorKind::kMachineRefused, "no memory left"});
  }
}

}  // namespace lockstep
