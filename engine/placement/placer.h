// Decides where a model lies: tries devices and batches in order and takes the
// first that fits. `lockstepd plan` and the daemon share it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "engine/base/result.h"
#include "engine/model/architecture.h"
#include "engine/placement/gpu_traits.h"
#include "engine/placement/machine.h"
#include "engine/placement/model_layout.h"
#include "engine/placement/settings.h"

namespace lockstep {

class Placer {
 public:
  // All of them outlive the placer.
  Placer(const Model& model, const Settings& settings, const Machine& machine)
      : model_(model), settings_(settings), machine_(machine) {}

  // The devices, the ranks and the split; there is no cache yet. The layout's
  // reason says why not others. Fails with kInvalidInput for settings that
  // contradict each other or the model, with kMachineRefused where nodes'
  // bandwidth cannot be measured.
  Result<ModelLayout> place();

 private:
  // The candidates.
  struct Candidate {
    DeviceChoice devices;
    size_t batch_tokens = 0;
    bool must_fit = false;  // otherwise it is taken as it is, whatever is wrong with it
  };

  Result<void> check_heads() const;
  // The GPUs must hold together: the weights once, activations,
  // and the cache that was asked for, or a page of it. Zeros where there are no
  // GPUs.
  Result<RankSizes> least_gpu_sizes() const;
  Result<DeviceChoice> find_devices(const RankSizes& least) const;
  // `gpu_bytes`: of least_gpu_sizes().
  Result<ModelLayout> lay_out(const Candidate& candidate, uint64_t gpu_bytes);
  // Nothing unless shares follow them: to open GPUs and to measure them takes its time.
  Result<void> find_gpu_speeds(ModelLayout& layout);
  Result<void> split(ModelLayout& layout) const;
  // Why a candidate that must fit is not to be used; empty: it is.
  std::string obstacle_to(const Result<ModelLayout>& layout) const;

  const Model& model_;
  const Settings& settings_;
  const Machine& machine_;
  // The GPUs' measured speeds, or why there are none: measured once, for all candidates.
  std::optional<Result<GpuSpeeds>> gpu_speeds_;
};

}  // namespace lockstep
