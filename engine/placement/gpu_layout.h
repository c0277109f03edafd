// GPUs in a model's layout: their names, the graphs that they cannot compute, and their memory.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "engine/graph/graph.h"
#include "engine/machine/topology.h"

namespace lockstep {

// ModelInfo::arithmetic of GPUs, whatever --arithmetic says. Attention of prompted and of generated
// tokens differs in the last bits there, so it is not `exact`.
inline constexpr std::string_view kGpuArithmetic = "gpu";

// Fails with kInvalidInput, naming what the kernels of GPUs cannot compute and the remedy.
// `beside_nodes`: some ranks are nodes', which take a mixture's experts.
Result<void> check_gpu_graph(const Graph& graph, bool beside_nodes);

std::string gpu_title(const Gpu& gpu);      // "gpu0 NVIDIA H200"
std::string gpu_code_name(const Gpu& gpu);  // its compute capability as nvcc has it: "sm_90"

// How much room the GPUs have, before any memory is taken.
class GpuBudget {
 public:
  // `kept_bytes`: of each, that nobody gets here.
  explicit GpuBudget(const Topology& topology, uint64_t kept_bytes = 0);

  // False when there is not enough; nothing is taken then.
  bool take(int gpu, uint64_t bytes);

 private:
  std::map<int, uint64_t> free_;  // by Gpu::index
};

}  // namespace lockstep
