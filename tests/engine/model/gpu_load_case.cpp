#include "tests/engine/model/gpu_load_case.h"

#include <algorithm>
#include <cstring>

#include "engine/base/checked_math.h"
#include "engine/kernels/gpu_matrix.h"
#include "engine/kernels/packed_matrix.h"
#include "tests/engine/kernels/cuda/launch_stream.h"

namespace lockstep::test {
namespace {

constexpr size_t kSliceAlignment = 256;
constexpr size_t kBounceBytes = 4096;  // less than most extents have
constexpr std::byte kUnfilled{0xFF};

// Does what gpu_pack_rows() does, as gpu_matrix_test shows; this runs under sanitizers as well.
void pack_rows_when_due(void* stream, const GpuPacking& packing) {
  static_cast<LaunchStream*>(stream)->enqueue_library([packing] { pack_gpu_rows(packing); });
}

size_t slice_bytes(const Weight& weight, const WeightSlice& slice, bool on_gpu) {
  const size_t rows = slice.row_end - slice.row_begin;
  const size_t columns = slice.column_end - slice.column_begin;
  if (!weight.is_matrix) return rows * columns * sizeof(float);
  return on_gpu ? gpu_matrix_bytes(weight.format, rows, columns) : slice.size_bytes;
}

LoadShape for_gpus(LoadShape shape) {
  shape.for_gpus = true;
  return shape;
}

}  // namespace

GpuLoadCase::GpuLoadCase(const std::filesystem::path& folder, const GpuLoadShape& shape)
    : case_(folder, for_gpus(shape.shape)), on_gpu_(shape.on_gpu) {
  const std::vector<int> cpus(shape.shape.workers, -1);
  for (const RankToLoad& rank : case_.ranks()) plans_.push_back(*rank.plan);
  for (size_t rank = 0; rank < plans_.size(); ++rank) {
    gpus_.emplace_back(static_cast<int>(rank));
    devices_.push_back(std::make_unique<HostDevice>(gpus_.back()));
    workers_.push_back(Workers::start(cpus, true).value());
    sinks_.push_back(
        std::make_unique<GpuWeightSink>(*devices_.back(), pack_rows_when_due, -1, kBounceBytes));
  }
  memory_.resize(plans_.size());
  host_memory_.resize(plans_.size());
  for (size_t rank = 0; rank < plans_.size(); ++rank) {
    targets_.push_back({.plan = plans_[rank],
                        .workers = *workers_[rank],
                        .sink = on_gpu_[rank] ? sinks_[rank].get() : nullptr});
  }
}

void GpuLoadCase::place_slices() {
  for (size_t rank = 0; rank < plans_.size(); ++rank) {
    size_t bytes = 0;
    for (WeightSlice& slice : plans_[rank].weights) {
      slice.size_bytes = slice_bytes(case_.graph().weights()[slice.weight], slice, on_gpu_[rank]);
      slice.offset = bytes;
      bytes += round_up(slice.size_bytes, kSliceAlignment);
    }
    if (on_gpu_[rank]) {
      memory_[rank] = GpuMemory();
      memory_[rank] = devices_[rank]->allocate(bytes, "weights").value();
      targets_[rank].weights = memory_[rank].data();
    } else {
      host_memory_[rank].assign(bytes + kSliceAlignment, kUnfilled);
      targets_[rank].weights = reinterpret_cast<std::byte*>(round_up<uintptr_t>(
          reinterpret_cast<uintptr_t>(host_memory_[rank].data()), kSliceAlignment));
    }
  }
}

std::vector<RankToLoad> GpuLoadCase::ranks() const {
  std::vector<RankToLoad> ranks;
  for (size_t rank = 0; rank < plans_.size(); ++rank) {
    ranks.push_back({&plans_[rank], on_gpu_[rank]});
  }
  return ranks;
}

Result<LoadReport> GpuLoadCase::load(const LoadOptions& options) {
  place_slices();
  bytes_done_ = 0;
  return load_weights(case_.file(), case_.graph(), targets_, bytes_done_, options);
}

testing::AssertionResult GpuLoadCase::is_loaded(size_t rank, const WeightSlice& slice) const {
  const Weight& weight = case_.graph().weights()[slice.weight];
  const size_t rows = slice.row_end - slice.row_begin;
  const size_t columns = slice.column_end - slice.column_begin;
  const std::byte* const held = targets_[rank].weights + slice.offset;
  std::vector<float> values(columns);
  for (size_t row = 0; row < rows && columns > 0; ++row) {
    const std::vector<float> expected = case_.row_values(slice, row);
    if (!weight.is_matrix) {
      std::memcpy(values.data(), held, columns * sizeof(float));
    } else if (on_gpu_[rank]) {
      unpack_gpu_row({weight.format, rows, columns, held}, row, values.data());
    } else {
      unpack_row({weight.format, rows, columns, held}, row, values.data());
    }
    if (std::memcmp(values.data(), expected.data(), columns * sizeof(float)) != 0) {
      return testing::AssertionFailure()
             << "rank " << rank << ", " << weight.name << ", " << traits(weight.format).name
             << ", row " << slice.row_begin << " + " << row << " of " << rows << ", columns from "
             << slice.column_begin << " to " << slice.column_end;
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult GpuLoadCase::has_the_files_values() const {
  for (size_t rank = 0; rank < plans_.size(); ++rank) {
    for (const WeightSlice& slice : plans_[rank].weights) {
      if (auto loaded = is_loaded(rank, slice); !loaded) return loaded;
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult GpuLoadCase::nothing_else_is_held() const {
  for (size_t rank = 0; rank < plans_.size(); ++rank) {
    const HostGpu::Counts counts = gpus_[rank].counts();
    if (counts.allocated_bytes != memory_[rank].size_bytes() || counts.pinned_bytes != 0) {
      return testing::AssertionFailure()
             << "gpu" << rank << " holds " << counts.allocated_bytes << " bytes for weights of "
             << memory_[rank].size_bytes() << ", and " << counts.pinned_bytes << " are pinned";
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace lockstep::test
