// How a model would lie on this machine: its ranks, their split, the sizes of everything. Decided
// before anything is taken or loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/engine.h"
#include "engine/graph/planner.h"
#include "engine/graph/split.h"
#include "engine/machine/device_choice.h"
#include "engine/machine/rank_places.h"
#include "engine/machine/topology.h"
#include "engine/model/architecture.h"

namespace lockstep {

struct RankSizes {
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t scratch_bytes = 0;
  uint64_t exchange_bytes = 0;
  uint64_t logits_bytes = 0;     // 0 but on rank 0
  uint64_t candidate_bytes = 0;  // of the host, for those logits of a GPU that are sent to it

  // What lies on the GPU where all ranks are GPUs.
  uint64_t gpu_bytes() const {
    return weight_bytes + kv_bytes + scratch_bytes + exchange_bytes + logits_bytes;
  }
  uint64_t activation_bytes() const { return scratch_bytes + exchange_bytes + logits_bytes; }
  uint64_t total_bytes() const { return weight_bytes + kv_bytes + activation_bytes(); }
};

struct ModelLayout {
  DeviceChoice devices;
  std::vector<RankPlace> places;
  Split split;
  PlanOptions plan_options;
  std::string arithmetic;        // the profile: "exact", "fast"; "gpu": GPUs have their own
  std::string instruction_set;   // "avx512"; of a GPU "sm_90"
  std::string device_titles;     // "node0, node1", "gpu0 NVIDIA H200"
  size_t context_tokens = 0;     // of one sequence at most
  std::vector<RankSizes> sizes;  // by rank
  // What an earlier process has left, whose memory is taken already: it needs no room.
  bool weights_held = false;
  std::optional<size_t> kv_pages_held;

  bool on_gpus() const { return !devices.gpus.empty(); }  // some of the ranks
  bool is_mixed() const { return on_gpus() && !devices.nodes.empty(); }
  PlanOptions options_of(size_t rank) const { return options_on(places[rank], plan_options); }
};

// What a rank on this node can take; of node -1: what the process can. Pages set aside in pools are
// counted where they are the node's.
uint64_t takeable_bytes(const Topology& topology, int node);
// The same for a rank, which may be a GPU.
uint64_t takeable_bytes(const Topology& topology, const RankPlace& place);

// The machine with its GPUs, or with those that the options make up.
Topology read_machine_with_gpus(const EngineOptions& options);
// The machine as these options ask for it: with its GPUs where ranks may come to lie on them.
Topology read_machine(const EngineOptions& options);

// The devices, the ranks and the split; there is no cache yet. Fails with kInvalidInput for options
// that contradict each other or the model.
Result<ModelLayout> split_model(const Model& model, const EngineOptions& options,
                                const KernelTable& kernels, const Topology& topology);

// The first rank whose arenas do not find room; none: all of them fit.
std::optional<size_t> first_misfit(const ModelLayout& layout, const Topology& topology);

// How long a sequence may get and how many pages that takes. Fails with kMachineRefused when the
// model does not fit, naming the node, what is needed and what there is.
Result<void> size_context(const Model& model, const EngineOptions& options,
                          const Topology& topology, ModelLayout& layout);

// The sizes of every rank with a cache of `kv_pages`. `places`: of all ranks, which have options of
// their own then.
std::vector<RankSizes> rank_sizes(const Model& model, const Split& split, PlanOptions options,
                                  size_t kv_pages, std::span<const RankPlace> places = {});

}  // namespace lockstep
