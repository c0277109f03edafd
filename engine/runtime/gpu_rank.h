// What a rank has on its GPU: memory for its arenas, and its plan as launches. The rank's one
// worker drives it.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <span>

#include "engine/base/result.h"
#include "engine/graph/planner.h"
#include "engine/machine/node_memory.h"
#include "engine/runtime/batch.h"
#include "engine/runtime/gpu_platform.h"
#include "engine/runtime/gpu_program.h"

namespace lockstep {

class GpuRank {
 public:
  // The longest that a pass may take: then the GPU counts as lost.
  static constexpr std::chrono::seconds kPassDeadline{4};

  // The longest that it waits for another rank's GPU; less, so that it is told who is missing.
  static constexpr std::chrono::seconds kSumDeadline{3};

  // Fails with kMachineRefused.
  static Result<std::unique_ptr<GpuRank>> open(const GpuPlatform& platform, int gpu);
  ~GpuRank();

  // Takes the memory that the plan needs but for the logits', which are the host's. `node`: where
  // its own memory of the host lies. `among_processors`: other ranks are processors; then what
  // ranks exchange is the host's as well.
  Result<void> allocate(const Plan& sizes, int node, bool among_processors);
  // Makes the host's memory, which must outlive this, reachable for the GPU: the logits.
  Result<void> pin(const NodeMemory& memory);
  // Of all ranks, which are GPUs, once all have allocated: lets each reach the others' memory.
  static Result<void> connect(std::span<GpuRank* const> ranks);
  // But for the logits'.
  ArenaAddresses arenas() const;

  // Makes the launches of the plan, which must outlive this, and records those of passes that
  // generate for up to `sequences`. Once, after allocate().
  Result<void> prepare(const Plan& plan);

  // Computes a pass, by one thread at a time; when it returns, the logits are there. Allocates
  // nothing. After a failure nothing more can be computed.
  Result<void> run(const Batch& batch);
  // The same in parts, among processors: begin(), then run_steps() of the plan's steps in order,
  // without those that sum; what a part has computed is there when it returns.
  Result<void> begin(const Batch& batch);
  Result<void> run_steps(Range steps);

  // `count` floats of the GPU's memory, between passes.
  Result<void> read(const float* from, std::span<float> to);

  GpuDevice& device() { return *device_; }
  const GpuKernels& kernels() const { return *platform_.kernels; }
  size_t recording_count() const { return recordings_.size(); }

 private:
  GpuRank(const GpuPlatform& platform, std::unique_ptr<GpuDevice> device)
      : platform_(platform), device_(std::move(device)) {}

  Result<void> take_mailbox(size_t rank, size_t rank_count);
  Result<void> wait();
  Result<void> record();
  Result<void> fill_constants();
  size_t write_batch(const Batch& batch);

  const GpuPlatform& platform_;
  std::unique_ptr<GpuDevice> device_;
  GpuMemory weights_;
  GpuMemory scratch_;
  GpuMemory exchange_;
  GpuMemory kv_;
  GpuMemory mailbox_;   // of several ranks
  NodeMemory staging_;  // of the host: what is copied to the GPU before a pass, or from it after
  NodeMemory failure_;  // a word that tells which rank did not come
  std::vector<GpuMemory> pinned_;
  GpuPeers peers_;
  bool among_processors_ = false;
  const Plan* plan_ = nullptr;
  std::unique_ptr<GpuMatrixLibrary> library_;
  bool library_is_lost_ = false;  // with its GPU: it is not closed
  std::unique_ptr<GpuProgram> program_;
  std::unique_ptr<GpuStream> stream_;
  GpuPassShape shape_;  // of the pass at hand
  std::map<GpuPassShape, std::unique_ptr<GpuRecording>> recordings_;
};

}  // namespace lockstep
