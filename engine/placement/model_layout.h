// A model's place on this machine: its ranks, their split, the sizes of everything. Decided before
// anything is taken or loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/split.h"
#include "engine/machine/device_choice.h"
#include "engine/machine/rank_places.h"
#include "engine/model/architecture.h"
#include "engine/placement/device_rules.h"
#include "engine/placement/draft_layout.h"
#include "engine/placement/gpu_traits.h"
#include "engine/placement/rank_device.h"
#include "engine/planner/planner.h"
#include "engine/runtime/hosts/host_exchange.h"

namespace lockstep {

// Tokens of context that a default must leave on GPUs, unless the model was trained for less.
inline constexpr size_t kLeastAutomaticContext = 4096;

struct ModelLayout {
  DeviceChoice devices;
  std::vector<RankPlace> places;  // GPUs first; where several hosts compute, this host's
  Split split;
  // Among several hosts: the ranks of each, and all ranks' places, those of other hosts as far as
  // plans ask for them.
  std::optional<HostRanks> hosts = {};
  std::vector<RankPlace> places_of_hosts = {};
  std::string host_name = {};      // this one's, for messages
  std::string plans_digest = {};   // of all ranks' plans
  uint64_t host_buffer_bytes = 0;  // what this host exchanges with the others lies there
  // The last layers of a mixture on GPUs and nodes whose experts the GPUs have.
  size_t gpu_expert_layers = 0;
  PlanOptions plan_options;
  std::string arithmetic;        // the profile: "exact", "fast"; "gpu": GPUs have their own
  std::string instruction_set;   // "avx512"; of a GPU "sm_90"
  std::string gpu_kinds;         // of the GPUs, "NVIDIA H200 (sm_90, 143771 MiB)"; else empty
  std::string device_titles;     // "node0, node1", "gpu0 NVIDIA H200"
  size_t context_tokens = 0;     // of one sequence at most
  std::vector<RankSizes> sizes;  // by rank
  std::optional<DraftLayout> draft = {};     // of a smaller model that drafts tokens
  bool gpus_linked = true;                   // each of the GPUs reaches the others' memory
  uint64_t nccl_bytes = 0;                   // taken of each GPU beside those
  std::optional<GpuSpeeds> gpu_speeds = {};  // where shares follow them
  // Left by an earlier process, so that the memory is taken already.
  bool weights_held = false;
  std::optional<size_t> kv_pages_held;

  ModelPlaces as_places() const { return {devices, places, plan_options, gpus_linked}; }
  // The draft's sizes beside a cache of so many pages; empty: there is none.
  std::vector<RankSizes> draft_sizes_with(size_t kv_pages) const {
    if (!draft) return {};
    return draft_sizes(*draft, {kv_pages, plan_options.sequence_pages}, places);
  }
  // The rank of the first place.
  size_t first_rank() const { return hosts ? hosts->own().begin : 0; }
  const DeviceRules& rules() const { return rules_of(devices); }
  // The places of the GPUs, in the order of `devices.gpus`, and those of nodes behind them.
  std::span<const RankPlace> gpu_places() const {
    return std::span(places).first(devices.gpus.size());
  }
  std::span<const RankPlace> node_places() const {
    return std::span(places).subspan(devices.gpus.size());
  }
  // `rank`: counted from the first place.
  PlanOptions options_of(size_t rank) const { return options_on(places[rank], plan_options); }
};

}  // namespace lockstep
