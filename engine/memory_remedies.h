// What can be done where a model finds no room. A remedy is named only after it was tried on paper.
#pragma once

#include "engine/base/result.h"
#include "engine/engine.h"
#include "engine/kernels/kernel_table.h"
#include "engine/machine/memory_room.h"
#include "engine/machine/topology.h"
#include "engine/model/architecture.h"
#include "engine/model_layout.h"

namespace lockstep {

// `refusal`, which size_context() gave for `layout`, with the remedies behind it: settings as one
// writes them on the command line, with each of which the whole layout finds room; a smaller model;
// and free memory, where this machine has enough of it in all. Nothing is measured or taken; lays
// the model out some dozens of times.
Error with_memory_remedies(Error refusal, const Model& model, const EngineOptions& options,
                           const KernelTable& kernels, const Topology& topology,
                           const ModelLayout& layout,
                           const MemoryLimits& limits = read_memory_limits());

}  // namespace lockstep
