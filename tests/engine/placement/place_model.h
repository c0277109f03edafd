// Places a model as options ask for it, as plan_machine() and the engine do.
#pragma once

#include <string>

#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "engine/placement/placer.h"
#include "tests/paths.h"

namespace lockstep {

inline Result<Settings> parse(const EngineOptions& options, const Machine& machine,
                              const std::string& row = kernel_row()) {
  return parse(options, **choose_kernel_table(row), machine);
}

inline Result<ModelLayout> place_model(const Model& model, const EngineOptions& options,
                                       const Machine& machine,
                                       const std::string& row = kernel_row()) {
  const auto settings = parse(options, machine, row);
  if (!settings) return std::unexpected(settings.error());
  return Placer(model, *settings, machine).place();
}

}  // namespace lockstep
