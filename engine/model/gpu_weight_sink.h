// Weights of a rank on a GPU: copied as the file has them and packed there, panels by its kernels.
// Vectors are dequantized here and copied. One extent is copied while another is packed.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "engine/base/mutex.h"
#include "engine/kernels/gpu_matrix.h"
#include "engine/machine/node_memory.h"
#include "engine/model/weight_sink.h"

namespace lockstep {

class GpuWeightSink final : public WeightSink {
 public:
  // gpu_pack_rows() of the GPU's kernels (GpuKernels::pack_rows).
  using PackRows = void (*)(void* stream, const GpuPacking& packing);

  // The device must outlive it. `node`: the GPU's, where pinned memory lies that bytes go through
  // which are not pinned; -1: anywhere. `bounce_bytes`: of that memory, for each lane; a block's
  // floats fit into it.
  GpuWeightSink(GpuDevice& device, PackRows pack_rows, int node = -1,
                size_t bounce_bytes = kBounceBytes)
      : device_(device), pack_rows_(pack_rows), node_(node), bounce_bytes_(bounce_bytes) {}
  ~GpuWeightSink() override { (void)finish(); }
  GpuWeightSink(const GpuWeightSink&) = delete;
  GpuWeightSink& operator=(const GpuWeightSink&) = delete;

  // The bytes of the GPU's memory that are taken from begin() to finish(), beside the weights.
  static constexpr size_t staging_bytes(size_t extent_bytes_max) {
    return kLaneCount * extent_bytes_max;
  }

  bool takes_whole_panels() const override { return true; }
  Result<void> begin(size_t extent_bytes_max) override;
  Result<GpuMemory> pin(std::span<std::byte> buffers) override { return device_.pin(buffers); }
  // The calling thread uses this GPU from then on.
  Result<void> take(const ReadExtent& read) override;
  Result<void> finish() override;

 private:
  // Neither was measured.
  static constexpr size_t kLaneCount = 2;
  static constexpr size_t kBounceBytes = 1U << 20U;

  // A stream, and where it copies to. One thread's at a time.
  struct Lane {
    std::byte* bounce = nullptr;  // pinned
    GpuMemory staging;
    std::unique_ptr<GpuStream> stream;
  };

  // A lane for as long as this lives.
  class Turn {
   public:
    explicit Turn(GpuWeightSink& sink) : sink_(sink), lane_(sink.take_lane()) {}
    ~Turn() { sink_.give_back(lane_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    Lane& lane() { return sink_.lanes_[lane_]; }

   private:
    GpuWeightSink& sink_;
    size_t lane_;  // index
  };

  // Waits until one is free.
  size_t take_lane() LOCKSTEP_EXCLUDES(mutex_);
  void give_back(size_t lane) LOCKSTEP_EXCLUDES(mutex_);
  std::optional<Error> failure() LOCKSTEP_EXCLUDES(mutex_);
  Result<void> take(Lane& lane, const ReadExtent& read);
  Result<void> take_matrix(Lane& lane, const ReadExtent& read) const;
  Result<void> take_vector(Lane& lane, const ReadExtent& read) const;

  GpuDevice& device_;
  PackRows pack_rows_;
  int node_;
  size_t bounce_bytes_;
  NodeMemory bounce_;
  GpuMemory pinned_bounce_;
  Mutex mutex_;
  ConditionVariable lane_is_free_;
  // The first; then nothing is asked of the GPU and waited for any more.
  std::optional<Error> failure_ LOCKSTEP_GUARDED_BY(mutex_);
  std::array<Lane, kLaneCount> lanes_;
  std::array<bool, kLaneCount> is_taken_ LOCKSTEP_GUARDED_BY(mutex_) = {};  // by lane
  size_t next_lane_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep
