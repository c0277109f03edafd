// A LoadCase of whose ranks some are on simulated GPUs.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <vector>

#include "engine/model/gpu_weight_sink.h"
#include "tests/engine/machine/host_device.h"
#include "tests/engine/model/load_case.h"

namespace lockstep::test {

struct GpuLoadShape {
  LoadShape shape;
  std::vector<bool> on_gpu;  // by rank
};

class GpuLoadCase {
 public:
  GpuLoadCase(const std::filesystem::path& folder, const GpuLoadShape& shape);

  LoadCase& base() { return case_; }
  // The rank's, which is on one.
  HostGpu& gpu(size_t rank) { return gpus_[rank]; }
  std::vector<RankToLoad> ranks() const;

  // Loads into memory that holds no number anywhere.
  Result<LoadReport> load(const LoadOptions& options = {});
  uint64_t bytes_done() const { return bytes_done_; }
  uint64_t bytes_to_load() {
    return lockstep::bytes_to_load(case_.file(), case_.graph(), targets_);
  }

  // Every value of every rank's slices, as its kernels will read it, has the bits of the file's.
  testing::AssertionResult has_the_files_values() const;
  // GPUs hold the weights and nothing else, and nothing is pinned.
  testing::AssertionResult nothing_else_is_held() const;

 private:
  void place_slices();
  testing::AssertionResult is_loaded(size_t rank, const WeightSlice& slice) const;

  LoadCase case_;
  std::vector<bool> on_gpu_;
  std::deque<HostGpu> gpus_;                          // by rank, though some have no use for it
  std::vector<std::unique_ptr<HostDevice>> devices_;  // by rank
  std::vector<Plan> plans_;
  std::vector<GpuMemory> memory_;                    // by rank, of all its slices
  std::vector<std::vector<std::byte>> host_memory_;  // the same for ranks that are on no GPU
  std::vector<std::unique_ptr<Workers>> workers_;
  std::vector<std::unique_ptr<GpuWeightSink>> sinks_;
  std::vector<LoadTarget> targets_;
  std::atomic<uint64_t> bytes_done_ = 0;
};

}  // namespace lockstep::test
