// GPUs as placement knows them: their names, their memory, their speeds, and the graphs that they
// do not compute.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "engine/graph/fusion/rules.h"
#include "engine/graph/graph.h"
#include "engine/kernels/attention.h"
#include "engine/machine/topology.h"

namespace lockstep {

struct GpuPlatform;

// ModelInfo::arithmetic of GPUs, whatever --arithmetic says. Attention of prompted and of generated
// tokens differs in the last bits there, so it is not `exact`.
inline constexpr std::string_view kGpuArithmetic = "gpu";

// `platform`, where the topology has GPUs that it can use; else null. Without the library that it
// needs it can use none: they are left out of the topology, which says why there are none.
const GpuPlatform* usable_platform(const GpuPlatform* platform, Topology& topology);

// Fails with kInvalidInput, naming a matrix that GPUs cannot hold, and the remedy.
Result<void> check_gpu_formats(const Graph& graph);

// The same of a cache's formats; `name`: as the user knows them.
Result<void> check_gpu_cache(const KvFormats& format, std::string_view name);

// The ranks beside a GPU's in a split.
enum class GpuCompany : uint8_t {
  kNobody,
  kGpus,
  kNodes,  // some are nodes', which take a mixture's experts
};

// The same, naming what the kernels of GPUs cannot compute and the remedy.
// `without`: the fusion rules that are switched off.
Result<void> check_gpu_graph(const Graph& graph, const FusionSet& without, GpuCompany company);

std::string gpu_title(const Gpu& gpu);      // "gpu0 NVIDIA H200"
std::string gpu_code_name(const Gpu& gpu);  // its compute capability as nvcc has it: "sm_90"

// The memory of the GPUs before any is taken.
class GpuBudget {
 public:
  // `kept_bytes`: the bytes of each GPU that take() leaves free.
  explicit GpuBudget(const Topology& topology, uint64_t kept_bytes = 0);

  // False when there is not enough; nothing is taken then.
  bool take(int gpu, uint64_t bytes);

 private:
  std::map<int, uint64_t> free_;  // by Gpu::index
};

// The memory of GPUs that a model takes.
struct GpuNeeds {
  uint64_t shared_bytes = 0;  // weights and cache, of which each has its share; 0: not known
  uint64_t each_bytes = 0;    // of every GPU, whatever its share is
};

// All of them measured, or all by the memory's clock and width: the two do not compare.
struct GpuSpeeds {
  std::map<int, double> bytes_per_second;  // by Gpu::index; 0: it does not say
  bool measured = false;
  std::string doubt;  // why they are not, where they are not: a sentence without its end
};

// Whether these (Gpu::index) are all of one kind, by name and memory: then they are equally fast.
bool are_alike(const Topology& topology, std::span<const int> gpus);

// Measures these one after the other, of each kind one. By their clocks where one has too little
// free memory for that, or where there is no platform. Fails with kMachineRefused where a GPU
// fails.
Result<GpuSpeeds> measure_gpu_speeds(const GpuPlatform* platform, const Topology& topology,
                                     std::span<const int> gpus);

// Asks them for nothing.
GpuSpeeds gpu_speeds_by_clock(const Topology& topology, std::span<const int> gpus,
                              std::string doubt);

}  // namespace lockstep
