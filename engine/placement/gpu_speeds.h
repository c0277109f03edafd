// How fast the GPUs of a split read their memory: what their shares and a plan's estimate follow.
#pragma once

#include <map>
#include <span>
#include <string>

#include "engine/base/result.h"
#include "engine/machine/topology.h"

namespace lockstep {

struct GpuPlatform;

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

// Without asking them for anything.
GpuSpeeds gpu_speeds_by_clock(const Topology& topology, std::span<const int> gpus,
                              std::string doubt);

}  // namespace lockstep
