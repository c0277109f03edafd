// Compares devices that could each compute a model, if no option names them: by how fast one
// sequence would be generated, as far as the memory's bandwidth and the exchanges set it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "engine/base/result.h"
#include "engine/placement/machine.h"
#include "engine/placement/model_layout.h"

namespace lockstep {

// Devices and what a generated token takes on them.
struct DeviceOption {
  std::string names;        // device_names()
  double read_seconds = 0;  // read_seconds() of the layout
  uint32_t exchanges = 0;   // barriers of all ranks
  double seconds_per_exchange = 0;

  double seconds_per_token() const { return read_seconds + exchanges * seconds_per_exchange; }
};

// The option that this layout is: by the GPUs' speeds as the layout has them, and the nodes' as
// they are measured, which takes some tenths of a second. An exchange takes what nodes measure for
// it, and for GPUs among them a guess more. `layout`: on nodes, or on nodes and on GPUs whose
// speeds its shares follow. Fails with kMachineRefused where nodes cannot be measured.
Result<DeviceOption> device_option(const Model& model, const Machine& machine,
                                   const ModelLayout& layout);

// The index of the one to take: the first, unless another is faster by more than what measurements
// of one machine differ by.
size_t choose_option(std::span<const DeviceOption> options);

// "gpu0, node0 generate at most 24.1 tokens/s (41.2 ms to read, 0.3 ms for 66 exchanges), ...",
// the chosen one first.
std::string compare_options(std::span<const DeviceOption> options, size_t chosen);

}  // namespace lockstep
