// A rank whose GPU computes (gpu_executor.h), driven by one worker, or, the first of ranks that are
// all GPUs, by the thread that runs passes. Among other GPUs a pass is the GPU's from end to end;
// among ranks on processors it exchanges with them by the host's memory.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/pass/pass.h"
#include "engine/runtime/gpu/gpu_executor.h"
#include "engine/runtime/rank.h"

namespace lockstep {

class GpuRank final : public Rank {
 public:
  // Opens the place's GPU. CHECKs that the place has a GPU and one worker. The workers and the
  // platform outlive the rank. Fails with kMachineRefused.
  static Result<std::unique_ptr<GpuRank>> open(const RankPlace& place, Workers& workers,
                                               const GpuPlatform& platform);

  // Before allocate(): what of its activations lies in the host's memory.
  void set_host_share(const HostShare& share) { host_ = share; }
  GpuExecutor& executor() { return *executor_; }
  const GpuExecutor& executor() const { return *executor_; }

  ArenaAddresses arenas() const override;
  std::unique_ptr<WeightSink> make_weight_sink() override;
  RankNeeds needs() const override;
  void begin(const PassInput& input) override;
  Result<void> finish() override;
  Result<bool> begin_ahead(const PassInput& input) override;
  bool begins_ahead() const override { return executor_->starts_ahead(); }
  bool has_waited_in_vain() const override { return executor_->has_waited_in_vain(); }
  bool finds_candidates() const override { return executor_->candidates() != nullptr; }
  FoundCandidates candidates(size_t row, const LogitDrawRequest& request) const override;
  Result<std::span<const float>> fetch_logits(size_t row) override;
  Result<HiddenPart> hidden_part(size_t token) override;
  uint64_t host_scratch_bytes() const override;

 private:
  Result<void> take_memory(ArenaSources sources) override;
  Result<void> prepare() override;
  GpuRank(const RankPlace& place, Workers& workers, std::unique_ptr<GpuExecutor> executor);
  bool is_driven_by_caller() const;
  void run_alone();
  Result<void> end_started();
  void run_among_processors();

  std::unique_ptr<GpuExecutor> executor_;
  HostShare host_;
  std::function<void(size_t worker)> job_;  // made once: a pass allocates nothing
  const PassInput* input_ = nullptr;        // of the pass at hand
  Result<void> result_;                     // its
  uint64_t begun_ticks_ = 0;                // of a pass in two calls: when it began to run
  std::vector<TaskCounter> tasks_;          // one per step of the plan
  std::vector<float> residual_;             // one hidden row as it was read
  std::vector<float> norm_weights_;         // once they have been asked for
};

}  // namespace lockstep
