#include "engine/placement/machine.h"

#include "engine/machine/control_group.h"
#include "engine/machine/memory_speed.h"
#include "engine/placement/gpu_traits.h"
#include "engine/runtime/exchange_measurement.h"
#include "engine/runtime/gpu/gpu_platform.h"

namespace lockstep {

Machine Machine::read(bool with_gpus) {
  Machine machine;
  machine.topology = read_topology();
  if (with_gpus) {
    add_gpus(machine.topology);
    machine.gpu_platform = usable_platform(cuda_platform(), machine.topology);
  }
  machine.memory = read_memory_limits();
  machine.cpu_limit = read_control_group_limits().cpus;
  machine.settings = read_machine_settings();
  machine.meter = {.read_speeds = &measure_read_bandwidths, .exchange_seconds = &measure_exchange};
  return machine;
}

void Machine::read_memory() {
  if (is_simulated) return;
  topology.nodes = read_topology().nodes;
  memory = read_memory_limits();
}

}  // namespace lockstep
