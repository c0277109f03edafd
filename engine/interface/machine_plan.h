// How a model would lie on this machine and how fast it would be, before anything is loaded: what
// `lockstepd plan` prints. Part of the engine's door.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

struct MachinePlan {
  struct HugePages {
    uint64_t page_bytes = 0;
    uint64_t total_pages = 0;
    uint64_t free_pages = 0;
  };
  struct Node {
    int id = 0;
    uint32_t cpu_count = 0;   // that this process may use
    uint32_t core_count = 0;  // physical
    uint64_t memory_bytes = 0;
    uint64_t free_bytes = 0;
    bool memory_allowed = true;
    std::vector<int> distances;  // to each of `nodes`
    std::vector<HugePages> huge_pages;
  };
  struct GpuPath {
    int gpu = 0;       // Gpu::index of the other one
    std::string link;  // "NVLink", "peer access", "through the host"
  };
  struct Gpu {
    int index = 0;
    std::string name;
    std::string uuid;
    std::string pci_address;
    int node = -1;  // -1: the machine does not say
    uint64_t memory_bytes = 0;
    uint64_t free_bytes = 0;
    std::string compute_capability;  // "9.0"
    uint32_t multiprocessor_count = 0;
    double bytes_per_second = 0;  // of its memory, by clock and width; 0: it does not say
    std::vector<GpuPath> links;   // to each of the others
  };
  // The devices that compute, by EngineOptions::devices.
  struct Devices {
    std::vector<int> nodes;  // Node::id
    std::vector<int> gpus;   // Gpu::index
    std::string names;       // "gpu0, node1"
    std::string reason;      // why these
    // Each names GPUs that compute nothing without having been left out by an option, the reason,
    // and the options that make them compute, if there are any.
    std::vector<std::string> idle = {};
  };
  struct Fault {
    std::string sentence;  // what is wrong with the machine, and what it costs
    std::string command;   // mends it
  };
  struct Need {
    std::string what;  // "recordings of passes"
    uint64_t bytes = 0;
  };
  struct Rank {
    int node = -1;                // -1: its memory is bound to none
    std::optional<int> gpu = {};  // Gpu::index of the one that computes; none: processors do
    std::vector<int> cpus;        // one per worker; -1: not pinned
    double share = 0;             // of all, from 0 to 1
    double expert_share = 0;      // the same of a mixture's experts
    uint64_t weight_bytes = 0;
    uint64_t kv_bytes = 0;
    uint64_t scratch_bytes = 0;      // of a GPU's rank what lies on the GPU
    uint64_t state_bytes = 0;        // of scratch_bytes: states of sequences
    std::vector<Need> other_needs;   // of a GPU's memory as well
    std::string pages;               // to be had: "2 MiB of the pool", "transparent", "4 KiB"
    uint64_t available_bytes = 0;    // on its node, shared with the other ranks there; on its GPU
    uint64_t read_bytes = 0;         // of weights per generated token
    uint64_t read_expert_bytes = 0;  // of them, of experts
    double bytes_per_second = 0;     // that it reads of its memory; 0: not known
    bool measured = false;           // else, of a GPU, by the memory's clock and width
    double seconds_per_token = 0;    // read_bytes / bytes_per_second
  };
  // A smaller model that drafts tokens, at the same ranks.
  struct Draft {
    struct Rank {
      uint64_t weight_bytes = 0;
      uint64_t kv_bytes = 0;
      uint64_t scratch_bytes = 0;
    };
    std::string model = {};  // the file's name
    std::string architecture = {};
    std::vector<Rank> ranks = {};
  };
  // Weights that more than one rank holds.
  struct Replica {
    std::string what;
    uint64_t extra_bytes = 0;  // over one copy, all ranks together
  };
  // Weights that memory holds in more bytes than the file.
  struct Encoded {
    std::string format;
    uint64_t file_bytes = 0;
    uint64_t memory_bytes = 0;  // of one copy
  };

  std::string model;
  std::string architecture;
  std::string format;
  std::string strategy;
  std::string instruction_set;  // of a GPU "sm_90"
  std::string arithmetic;       // "exact", "fast"; "gpu": GPUs have their own
  uint32_t context_tokens = 0;
  uint32_t sequence_count = 0;
  // Slots for the states that the model keeps of sequences, one for each that runs at once, for
  // checkpoints of the prefix cache, and from before drafts; none: it keeps none.
  std::optional<uint32_t> state_slots = {};
  // The memory of a slot, in pages of the KV cache; 0: there are no such pages.
  double state_slot_pages = 0;
  uint64_t model_weight_bytes = 0;  // packed, once
  std::vector<Node> nodes;
  std::vector<Gpu> gpus;
  std::string no_gpus;  // why there are none, where there are none
  Devices devices;
  std::vector<Fault> faults;  // the worst first
  std::vector<Rank> ranks;
  std::optional<Draft> draft = {};
  std::vector<Replica> replicas;
  std::vector<Encoded> encoded;  // by format
  bool fits = true;
  std::string misfit;  // where and by how much, when it does not fit

  uint32_t exchanges_per_token = 0;  // barriers of all ranks
  // Until every rank has read its part of a token's weights. What every token meets and experts
  // take turns.
  double read_seconds = 0;
  double seconds_per_exchange = 0;  // measured: a push of one token's activation, and a barrier
  double tokens_per_second = 0;     // one sequence, by the memory's bandwidth alone
  double one_rank_tokens_per_second = 0;  // the same model on the first rank alone; 0: no space
  std::string verdict;                    // which is faster, and why
};

}  // namespace lockstep
