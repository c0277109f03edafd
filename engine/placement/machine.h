// The machine as the engine plans for it: a value that is read once; tests make one.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/machine/machine_settings.h"
#include "engine/machine/memory_budget.h"
#include "engine/machine/rank_places.h"
#include "engine/machine/topology.h"

namespace lockstep {

struct GpuPlatform;

// Measures the processors' memory. The functions fail with kMachineRefused.
struct SpeedMeter {
  // Bytes per second that each place reads on its node, all places at once
  // (measure_read_bandwidths()).
  std::function<Result<std::vector<double>>(std::span<const RankPlace>)> read_speeds;
  // Seconds of one exchange of so many bytes between ranks (measure_exchange()).
  std::function<Result<double>(std::span<const RankPlace>, size_t)> exchange_seconds;
};

struct Machine {
  Topology topology;                // with GPUs where they were asked for
  MemoryLimits memory;              // that this process can take
  std::optional<double> cpu_limit;  // processors' worth of time of the control groups; none: all
  MachineSettings settings;
  const GpuPlatform* gpu_platform = nullptr;  // opens GPUs; null: none can be opened
  SpeedMeter meter;
  // Says before each pass whether the machine still computes: where it fails, so does the pass.
  // None: it does until a rank fails. Called by the engine's thread.
  std::function<Result<void>()> before_pass = {};
  bool is_simulated = false;  // its memory is not read again

  // Reads this machine; nothing else in the engine's placement does. `with_gpus`: GPUs are looked
  // for, which takes a moment with a driver, and where there are some, their maker's library.
  static Machine read(bool with_gpus);

  // Reads again what changes when memory is taken or given back: the nodes and the limits.
  void read_memory();
};

}  // namespace lockstep
