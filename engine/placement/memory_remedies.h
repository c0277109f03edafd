// Remedies for a model that does not fit. A remedy is named only after it was tried on paper.
#pragma once

#include "engine/base/result.h"
#include "engine/interface/options.h"
#include "engine/kernels/kernel_table.h"
#include "engine/model/architecture.h"
#include "engine/placement/machine.h"
#include "engine/placement/model_layout.h"

namespace lockstep {

// `refusal`, which size_context() gave for `layout`, with the remedies behind it: settings as one
// writes them on the command line, with each of which the whole layout finds space; a smaller
// model; and free memory, where this machine has enough of it in all. Among several hosts the
// settings are such as all of them have alike, and this one is named. Nothing is measured or taken;
// lays the model out some dozens of times.
Error with_memory_remedies(Error refusal, const Model& model, const EngineOptions& options,
                           const KernelTable& kernels, const Machine& machine,
                           const ModelLayout& layout);

}  // namespace lockstep
