// How a model would lie on this machine: its ranks, their split, the sizes of everything. Decided
// before anything is taken or loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/planner.h"
#include "engine/graph/split.h"
#include "engine/machine/device_choice.h"
#include "engine/machine/rank_places.h"
#include "engine/model/architecture.h"
#include "engine/placement/gpu_speeds.h"

namespace lockstep {

// What a rank takes, and where.
struct RankSizes {
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t scratch_bytes = 0;
  uint64_t exchange_bytes = 0;
  uint64_t logits_bytes = 0;      // 0 but on rank 0
  bool on_gpu = false;            // the rest lies in a GPU's memory, but for
  bool exchange_on_host = false;  // what it exchanges, where processors are among the ranks
  bool logits_on_host = false;    // and the logits, there and where GPUs do not reach one another
  // Of the host's memory as well: what is told of logits that lie in a GPU's.
  uint64_t candidate_bytes = 0;
  // Of a GPU's memory as well:
  uint64_t mailbox_bytes = 0;    // for sums with other GPUs
  uint64_t recording_bytes = 0;  // an allowance for recordings of passes
  uint64_t staging_bytes = 0;    // while it is loaded
  // What GPUs send one another at once, at most; where all ranks are.
  uint64_t message_floats = 0;

  uint64_t activation_bytes() const { return scratch_bytes + exchange_bytes + logits_bytes; }
  uint64_t total_bytes() const { return weight_bytes + kv_bytes + activation_bytes(); }
  // Of a GPU's rank, what of its activations lies in the host's memory.
  uint64_t hosted_bytes() const {
    if (!on_gpu) return 0;
    return (logits_on_host ? logits_bytes : 0) + (exchange_on_host ? exchange_bytes : 0);
  }
  // Of the host's memory; of the GPU's, 0 on processors.
  uint64_t host_bytes() const { return on_gpu ? hosted_bytes() + candidate_bytes : total_bytes(); }
  uint64_t gpu_bytes() const {
    return on_gpu ? total_bytes() - hosted_bytes() + other_gpu_bytes() : 0;
  }
  uint64_t other_gpu_bytes() const { return mailbox_bytes + recording_bytes + staging_bytes; }
};

// Tokens of context that a default must leave on GPUs, unless the model was trained for less.
inline constexpr size_t kLeastAutomaticContext = 4096;

struct ModelLayout {
  DeviceChoice devices;
  std::vector<RankPlace> places;
  Split split;
  size_t gpu_expert_layers = 0;  // of a mixture on GPUs and nodes: so many last ones' are the GPUs'
  PlanOptions plan_options;
  std::string arithmetic;        // the profile: "exact", "fast"; "gpu": GPUs have their own
  std::string instruction_set;   // "avx512"; of a GPU "sm_90"
  std::string device_titles;     // "node0, node1", "gpu0 NVIDIA H200"
  size_t context_tokens = 0;     // of one sequence at most
  std::vector<RankSizes> sizes;  // by rank
  bool gpus_linked = true;       // each of the GPUs reaches the others' memory
  uint64_t nccl_bytes = 0;       // of each GPU, beside those
  std::optional<GpuSpeeds> gpu_speeds = {};  // where shares follow them
  // What an earlier process has left, whose memory is taken already: it needs no room.
  bool weights_held = false;
  std::optional<size_t> kv_pages_held;

  bool on_gpus() const { return !devices.gpus.empty(); }  // some of the ranks
  bool is_mixed() const { return on_gpus() && !devices.nodes.empty(); }
  PlanOptions options_of(size_t rank) const { return options_on(places[rank], plan_options); }
};

// The sizes of every rank with a cache of `kv_pages`. `places`: of all ranks. `gpus_linked`: each
// of their GPUs reaches the others' memory.
std::vector<RankSizes> rank_sizes(const Model& model, const Split& split, PlanOptions options,
                                  size_t kv_pages, std::span<const RankPlace> places,
                                  bool gpus_linked);

}  // namespace lockstep
