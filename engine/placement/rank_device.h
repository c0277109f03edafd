// The device of a rank, as placement sees it: what a rank takes there, and of which memory. One
// body for the processors of a node, one for a GPU; device_of() chooses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/split.h"
#include "engine/machine/rank_places.h"
#include "engine/model/architecture.h"
#include "engine/operations/plan.h"
#include "engine/placement/gpu_traits.h"
#include "engine/placement/machine.h"
#include "engine/planner/planner.h"

namespace lockstep {

// The memory that a rank takes, and where.
struct RankSizes {
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t scratch_bytes = 0;
  uint64_t state_bytes = 0;  // of scratch_bytes: states of sequences
  uint64_t exchange_bytes = 0;
  uint64_t logits_bytes = 0;  // 0 but on rank 0
  bool own_is_hosts = true;   // weights, cache and scratch lie in the host's memory; else a GPU's
  bool exchange_is_hosts = true;
  bool logits_are_hosts = true;
  // Host memory for what a GPU tells of the logits that it holds, and for rows that are handed over
  // to it, by another GPU or with a batch's tokens.
  uint64_t candidate_bytes = 0;
  uint64_t handed_bytes = 0;
  // The first rank's, of a host among several: for what goes to the others and comes from them.
  uint64_t host_buffer_bytes = 0;
  // GPU memory beside the arenas:
  uint64_t mailbox_bytes = 0;    // for sums with other GPUs
  uint64_t layer_bytes = 0;      // for what layers by rank are handed over and keep of chunks
  uint64_t recording_bytes = 0;  // an allowance for recordings of passes
  uint64_t staging_bytes = 0;    // while it is loaded
  // The floats that GPUs send one another at once, at most; 0 where nodes are among the ranks.
  uint64_t message_floats = 0;

  uint64_t activation_bytes() const { return scratch_bytes + exchange_bytes + logits_bytes; }
  uint64_t total_bytes() const { return weight_bytes + kv_bytes + activation_bytes(); }
  // The activations that lie in the host's memory although the weights do not.
  uint64_t hosted_bytes() const {
    return (exchange_is_hosts == own_is_hosts ? 0 : exchange_bytes) +
           (logits_are_hosts == own_is_hosts ? 0 : logits_bytes);
  }
  // All in the memory that holds the weights: the node's, or the GPU's.
  uint64_t own_bytes() const { return total_bytes() - hosted_bytes() + other_bytes(); }
  // Those of them that are beside weights, cache and activations.
  uint64_t other_bytes() const {
    return host_buffer_bytes + mailbox_bytes + layer_bytes + recording_bytes + staging_bytes;
  }
  uint64_t host_bytes() const {
    return own_is_hosts ? own_bytes() : hosted_bytes() + candidate_bytes + handed_bytes;
  }
  uint64_t gpu_bytes() const { return own_is_hosts ? 0 : own_bytes(); }
  // The needs of a rank that is a GPU.
  GpuNeeds gpu_needs() const {
    const uint64_t shared = own_is_hosts ? 0 : weight_bytes + kv_bytes;
    return {.shared_bytes = shared, .each_bytes = gpu_bytes() - shared};
  }
};

// Memory of the host that a rank takes as one piece.
struct HostArena {
  enum class Use : uint8_t { kWeights, kKvCache, kOther };
  uint64_t bytes = 0;
  std::string_view what;  // "activations"
  Use use = Use::kOther;
};

// The ranks beside which one computes.
struct RankCompany {
  size_t rank_count = 1;
  bool has_nodes = false;    // processors are among them
  bool gpus_linked = true;   // each of the GPUs reaches the others' memory
  bool by_layers = false;    // each has layers by itself
  bool among_hosts = false;  // others' are on other hosts
};

class RankDevice {
 public:
  virtual ~RankDevice() = default;

  // The memory that the rank calls its own: "gpu0", "node 1", "this machine". Ranks share it where
  // the name is the same.
  virtual std::string memory_name(const RankPlace& place) const = 0;
  virtual RankSizes sizes(const Graph& graph, const Plan& plan,
                          const RankCompany& company) const = 0;
  // In the order in which a rank takes them.
  virtual std::vector<HostArena> host_arenas(const RankSizes& sizes) const = 0;
  // Takes what is a GPU's; false where that has no space for it, and nothing is taken.
  virtual bool take_gpu_memory(const RankPlace& place, const RankSizes& sizes,
                               GpuBudget& gpus) const = 0;
  // The bytes that ranks can take of the memory that this one calls its own.
  virtual uint64_t takeable_bytes(const Machine& machine, const RankPlace& place) const = 0;
  // The pages that so many bytes of weights get: "transparent", "2 MiB of the pool".
  virtual std::string page_text(const Machine& machine, const RankPlace& place,
                                uint64_t bytes) const = 0;
};

// Lives as long as the program.
const RankDevice& device_of(const RankPlace& place);

// The bytes that ranks can take on this node; of node -1: that the process can. Pages set aside in
// pools are counted where they are the node's.
uint64_t takeable_bytes(const Machine& machine, int node);

// The sizes of every rank at these places with a cache of `kv_pages`. `gpus_linked`: each of their
// GPUs reaches the others' memory. `first_rank`: the first place's; where the split is for more
// ranks than these, other hosts have the others.
std::vector<RankSizes> rank_sizes(const Model& model, const Split& split, PlanOptions options,
                                  size_t kv_pages, std::span<const RankPlace> places,
                                  bool gpus_linked, size_t first_rank = 0);

}  // namespace lockstep
