// Decides where a model lies: tries devices and batches in order and takes the
// first that fits. If no devices are named, it tries all GPUs, then fewer GPUs;
// where the model fits on none, GPUs beside nodes or nodes alone, whichever
// would generate faster. `lockstepd plan` and the daemon share it.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

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
  Result<void> check_heads() const;
  // The GPUs must hold together: the weights once, activations,
  // and the cache that was asked for, or a page of it. Zeros where there are no
  // GPUs.
  Result<RankSizes> least_gpu_sizes() const;
  // A draft model's beside those, with its own pages alone; zeros where there is none, or GPUs do
  // not compute it.
  GpuNeeds least_draft_needs(const GpuNeeds& least) const;
  Result<ModelLayout> stay_on_gpus(Result<ModelLayout> placed);
  // All GPUs, or else nodes and the reason why not.
  DeviceChoice choose_devices_for(const RankSizes& least) const;
  Result<ModelLayout> place_on(const DeviceChoice& devices);
  Result<ModelLayout> place_automatically(const DeviceChoice& choice);
  // The layout on these devices if it fits; else why it does not is in `obstacle`.
  std::optional<ModelLayout> find_fitting(const DeviceChoice& devices, std::string& obstacle);
  std::optional<ModelLayout> find_on_fewer_gpus(const std::string& why_not_all);
  // `why_not_alone` gets why not beside nodes either, where that was tried.
  std::optional<ModelLayout> find_beside_nodes(std::string& why_not_alone);
  // `beside`, or the nodes alone where these are faster.
  Result<ModelLayout> compare_with_nodes(ModelLayout beside, const std::string& why_not_alone);
  Result<ModelLayout> lay_out(const DeviceChoice& devices, size_t batch_tokens);
  // Nothing unless shares follow them: to open GPUs and to measure them takes its time.
  Result<void> find_gpu_speeds(ModelLayout& layout);
  Result<void> split(ModelLayout& layout) const;
  Result<void> split_by_layers(ModelLayout& layout) const;
  Result<void> add_draft(Strategy strategy, ModelLayout& layout) const;
  // Why a candidate that must fit is not to be used; empty: it is.
  std::string obstacle_to(const Result<ModelLayout>& layout) const;

  const Model& model_;
  const Settings& settings_;
  const Machine& machine_;
  GpuNeeds gpu_needs_;  // of least_gpu_sizes(), and of the draft model
  // By GPUs: their measured speeds, or why there are none: measured once, for all candidates.
  std::map<std::vector<int>, Result<GpuSpeeds>> gpu_speeds_;
};

}  // namespace lockstep
