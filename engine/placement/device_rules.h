// The rules by which a model is placed on the devices that were chosen: one body for nodes alone,
// one for GPUs alone, one for both; rules_of() chooses.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/graph/graph.h"
#include "engine/machine/device_choice.h"
#include "engine/machine/rank_places.h"
#include "engine/machine/topology.h"
#include "engine/model/architecture.h"
#include "engine/operations/plan_target.h"
#include "engine/placement/gpu_traits.h"
#include "engine/placement/machine.h"
#include "engine/placement/settings.h"
#include "engine/planner/split_graph.h"

namespace lockstep {

struct DeviceTraits {
  bool experts_by_kind = false;    // nodes have a mixture's experts, and GPUs all else
  bool rank_count_is_free = true;  // else each device is one rank
  bool memory_can_be_kept = true;  // by the next process
  bool gives_kept_rows = true;     // Executor::read_kept_rows()
  bool drafts_among_hosts = true;  // by another model, where the hosts are led
  bool sums_parts = false;         // several ranks add their parts of a product
  bool spans_hosts = true;         // ranks may be on several hosts
  bool joined_by_nccl = false;     // then NCCL joins them
  bool has_alternative = false;    // nodes compute where the devices do not suffice
};

class DeviceRules {
 public:
  explicit DeviceRules(const DeviceTraits& of) : traits(of) {}
  virtual ~DeviceRules() = default;

  const DeviceTraits traits;

  // True if nodes may compute in place of the devices: the user has not chosen the devices.
  bool gives_way(const DeviceChoice& devices) const {
    return traits.has_alternative && devices.automatic;
  }

  // Whether the devices can compute this graph as these settings want it. Fails with kInvalidInput.
  virtual Result<void> check(const Graph& graph, const Settings& settings, const Machine& machine,
                             const DeviceChoice& devices) const = 0;
  // How GPUs alone exchange, if not over one another's memory: the end of a sentence; else empty.
  virtual std::string_view sums_text(const Settings& /*settings*/, const Topology& /*topology*/,
                                     const DeviceChoice& /*devices*/) const {
    return "";
  }
  // The bytes that each GPU has to keep free for NCCL, if it is to join them: GPUs that compute
  // with nodes exchange through the host's memory. `gpus_linked`: each reaches the others' memory.
  // `message_floats`: sent by a rank at once, at most (exchanged_floats_max()).
  virtual uint64_t nccl_bytes(const Machine& /*machine*/, const DeviceChoice& /*devices*/,
                              bool /*gpus_linked*/, uint64_t /*message_floats*/) const {
    return 0;
  }

  // ModelInfo::arithmetic and ModelInfo::instruction_set.
  virtual std::string arithmetic(const Settings& settings) const = 0;
  virtual std::string instruction_set(const Topology& topology, const Settings& settings,
                                      const DeviceChoice& devices) const = 0;
  // A sentence where --arithmetic says what the devices do not heed; else empty.
  virtual std::string unheeded_text(std::string_view arithmetic) const = 0;

  // Tokens of a pass, in the order in which they are tried.
  virtual std::vector<size_t> batches(const Settings& settings) const {
    return {settings.batch_tokens};
  }
  // For the ranks of nodes where there are some, else for those of GPUs; options_on() makes those
  // of each rank from them. A context that is not known yet is as long as it can be.
  virtual PlanOptions plan_options(const Model& model, const Settings& settings,
                                   size_t batch_tokens) const = 0;
  virtual Strategy strategy(const Settings& settings, size_t rank_count) const = 0;

  // True if the devices' shares follow from the GPUs' speeds: the user has given no shares, and the
  // devices are GPUs of several kinds, or GPUs and nodes.
  virtual bool shares_follow_gpu_speeds(const Settings& settings, const Topology& topology,
                                        const DeviceChoice& devices) const = 0;
  // As find_places() below.
  virtual Result<std::vector<RankPlace>> places(const Settings& settings, const Machine& machine,
                                                const DeviceChoice& devices, const GpuNeeds& needs,
                                                const std::optional<GpuSpeeds>& speeds) const = 0;

  // Whether tokens that were generated leave the same keys and values as tokens that were prompted.
  virtual bool generated_pages_are_shared(const PlanOptions& options) const = 0;
  // SchedulerLimits::short_prompt.
  virtual size_t short_prompt() const { return 0; }
  // Answers depend on these, beside the model's file and the split.
  virtual std::vector<std::string> fingerprint_parts(const std::string& instruction_set,
                                                     const std::vector<RankPlace>& places,
                                                     Strategy strategy) const = 0;
};

// Lives as long as the program.
const DeviceRules& rules_of(const DeviceChoice& devices);

// The ranks of the chosen devices, GPUs first, with their shares. Shares that are not given follow
// bandwidth; a GPU without space for its share gets a smaller one, if it is beside nodes or the
// devices are not named. `needs`: of the whole model on GPUs. `speeds`: the GPUs', where shares
// follow them. Fails with kInvalidInput, with kMachineRefused where nodes' bandwidth cannot be
// measured.
Result<std::vector<RankPlace>> find_places(const Settings& settings, const Machine& machine,
                                           const DeviceChoice& devices, const GpuNeeds& needs,
                                           const std::optional<GpuSpeeds>& speeds);

// The share of a mixture's experts.
inline double expert_share_of(const RankPlace& place) {
  return place.expert_share.value_or(place.share);
}

// The shares of the ranks with these places.
Shares shares_of(const std::vector<RankPlace>& places);

// Gives ranks on GPUs and on nodes shares by their bandwidths, in whole parts, but for GPUs that
// have no space for so much of what is needed. `gpus`: the places of these devices' GPUs, in their
// order. Fails with kInvalidInput where a GPU does not say how fast it is, with kMachineRefused
// where nodes cannot be measured.
Result<void> share_by_bandwidth(const Machine& machine, const DeviceChoice& devices,
                                const GpuSpeeds& speeds, const GpuNeeds& needs,
                                std::span<RankPlace> gpus, std::span<RankPlace> nodes);

// The share of each rank by its bandwidth, in whole parts, at least 1: measurements differ a
// little from start to start, and where the model is cut must not.
std::vector<double> shares_in_parts(const std::vector<double>& bandwidths);

// Parts of all, which is 1: by bandwidth (above 0), but for those that may have no more than their
// limit. What these leave goes to the others, by bandwidth. By the limits alone where these are
// less than 1 together.
std::vector<double> shares_within(const std::vector<double>& bandwidths,
                                  const std::vector<double>& limits);

}  // namespace lockstep
