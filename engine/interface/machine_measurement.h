// Measured speeds of a machine, as `lockstepd bench-machine` prints them. Part of the engine's
// door.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

struct MachineMeasurementOptions {
  uint64_t memory_bytes = 512U << 20U;  // looked at on each node and GPU; less where less is free
  double seconds = 0.2;                 // for each figure, and at least one pass
  bool exchanges = true;                // and barriers; false: they are left out
  std::filesystem::path file;           // read directly; none: no file is measured
};

// Multiplications and additions whose operands are in registers.
struct MachineArithmetic {
  std::string instruction_set;       // as the kernel table's rows
  std::string operation;             // "f32 multiply-add", "int8 dot product"
  double operations_per_second = 0;  // all cores together; a multiplication and an addition are two
  double one_core_operations_per_second = 0;
};

struct MachineMeasurement {
  struct Node {
    int id = 0;
    std::vector<int> cpus;  // one per physical core: where the threads ran
    bool has_memory = false;
  };
  // From a node's processors to a node's memory. Bytes per second.
  struct Path {
    int from_node = 0;
    int to_node = 0;
    int distance = 0;  // as the machine says
    double read = 0;   // all cores of the node together
    double write = 0;
    double copy = 0;  // bytes copied: each is read and written
    double one_core_read = 0;
    double one_core_write = 0;
    double one_core_copy = 0;
    double latency_seconds = 0;
    std::string pages;  // of the memory
  };
  // From a node's memory to another's, or within one, by all cores of a node. Bytes per second.
  struct NodeCopy {
    int from_node = 0;
    int to_node = 0;
    int cores_of_node = 0;  // one of the two
    double copy = 0;        // bytes copied: each is read and written
  };
  struct BarrierRound {
    int node = -1;  // -1: all ranks
    uint32_t worker_count = 0;
    double seconds = 0;
  };
  struct Collective {
    std::string name;    // "all_gather", "all_reduce"
    uint64_t bytes = 0;  // of the whole tensor, as every rank has it after
    double seconds = 0;  // the barrier included
  };
  // Bytes per second, but for products, and for what a launch takes: one after the other, of
  // kernels that do nothing.
  struct Gpu {
    int index = 0;
    std::string name;
    int node = -1;              // whose memory goes to and from it; -1: anywhere
    std::string failure;        // why it was not measured, or not to the end; empty: it was
    uint64_t memory_bytes = 0;  // looked at
    double by_clock = 0;        // what its memory's clock and width come to; 0: it does not say
    double read = 0;            // by a kernel that does nothing else
    double copy = 0;            // bytes copied: each is read and written
    double from_host = 0;       // through pinned memory
    double to_host = 0;
    double launch_seconds = 0;
    double recorded_launch_seconds = 0;  // in a recording
    // Operations per second (a multiplication and an addition are two) of a large product of bf16,
    // as prompts' are computed.
    double product = 0;
  };
  // From one GPU's memory to that of another that it reaches.
  struct GpuPath {
    int from_gpu = 0;
    int to_gpu = 0;
    std::string link;  // "NVLink", "peer access"
    std::string failure;
    double copy = 0;
  };
  struct FileRead {
    std::string path;
    uint64_t bytes = 0;  // that were read
    double bytes_per_second = 0;
    bool direct = false;  // past the page cache
  };

  std::vector<Node> nodes;
  std::vector<Path> paths;
  std::vector<NodeCopy> node_copies;          // every pair of nodes with memory, both ways
  std::vector<MachineArithmetic> arithmetic;  // of every instruction set that the machine has
  std::vector<BarrierRound> barriers;
  uint32_t rank_count = 0;       // that the collectives ran over; 0: one core, there are none
  bool simulated_ranks = false;  // the ranks share a node
  std::vector<Collective> collectives;
  std::vector<Gpu> gpus;
  std::string no_gpus;  // why there are none, where there are none
  std::vector<GpuPath> gpu_paths;
  std::vector<FileRead> files;  // at most one
};

}  // namespace lockstep
