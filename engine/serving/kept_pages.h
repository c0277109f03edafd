// Pages and states outside of the KV cache, as the options want them (docs/tiers.md), and the
// copies between them and the ranks' memory: each rank's workers copy their own rank's part, all at
// the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/interface/options.h"
#include "engine/interface/statistics.h"
#include "engine/runtime/ranks.h"
#include "engine/scheduler/scheduler.h"
#include "engine/tiers/page_tiers.h"

namespace lockstep {

class RankPages final : public PageCopier {
 public:
  // All ranks have their cache in the host's memory. `ranks` must outlive this.
  explicit RankPages(Ranks& ranks) : ranks_(ranks) {}

  std::vector<Part> parts(StoredKind kind) const override;
  void copy_out(StoredKind kind, uint32_t place, std::span<const std::span<std::byte>> to) override;
  void copy_in(StoredKind kind, uint32_t place,
               std::span<const std::span<std::byte>> from) override;
  void copy_states(std::span<const SlotCopy> copies) override;

 private:
  template <typename Copy>
  void copy(StoredKind kind, uint32_t place, std::span<const std::span<std::byte>> others,
            const Copy& copy);
  // Calls work(rank, worker) by every worker of every rank, and returns when all have returned.
  template <typename Work>
  void run_workers(const Work& work);

  Ranks& ranks_;
};

class KeptPages {
 public:
  using Identify = std::function<Result<std::string>()>;

  // Takes the memory, opens the files, and tells the scheduler's limits of both. Null where the
  // options want nothing, or it cannot be had: the log says why, and nothing else changes. `ranks`
  // must outlive this. `on_host`: the KV cache is in the host's memory. `identify` gives the
  // identity of FileTier's settings.
  static std::unique_ptr<KeptPages> keep(Ranks& ranks, const EngineOptions& options, bool on_host,
                                         SchedulerLimits& limits, const Identify& identify);

  // Any thread, both.
  TierStatistics statistics() const;
  bool has_files() const { return disk_bytes_max_ > 0; }

 private:
  explicit KeptPages(Ranks& ranks) : rank_pages_(ranks) {}

  static Result<std::unique_ptr<KeptPages>> make(Ranks& ranks, const EngineOptions& options,
                                                 SchedulerLimits& limits, const Identify& identify);

  RankPages rank_pages_;
  uint64_t disk_bytes_max_ = 0;  // 0: there are no files
  std::unique_ptr<PageTiers> tiers_;
};

}  // namespace lockstep
