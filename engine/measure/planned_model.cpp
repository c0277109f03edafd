#include "engine/measure/planned_model.h"

#include <utility>

#include "engine/kernels/kernel_choice.h"

namespace lockstep {

Result<PlannedModel> open_planned_model(const EngineOptions& options, const Machine& machine) {
  const auto kernels = choose_kernel_table(options.instruction_set);
  if (!kernels) return std::unexpected(kernels.error());
  auto file = GgufFile::open(options.model);
  if (!file) return std::unexpected(file.error());
  auto model = build_model({.file = *file, .context_tokens = options.context_tokens});
  if (!model) return std::unexpected(model.error());
  auto settings = parse(options, **kernels, machine);
  if (!settings) return std::unexpected(settings.error());
  auto draft = open_draft_file(options, *file, *settings, *model);
  if (!draft) return std::unexpected(draft.error());
  return PlannedModel{std::move(*file), std::move(*model), std::move(*draft), std::move(*settings)};
}

}  // namespace lockstep
