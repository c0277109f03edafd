#include "engine/measure/machine_planning.h"

#include <utility>

#include "engine/measure/plan_report.h"
#include "engine/measure/planned_model.h"
#include "engine/measure/speed_estimate.h"
#include "engine/model/architecture.h"
#include "engine/placement/memory_fit.h"
#include "engine/placement/memory_remedies.h"
#include "engine/placement/model_info.h"
#include "engine/placement/placer.h"

namespace lockstep {
namespace {

// Lays the model out; chooses the number of ranks by what is measured, if that
// is wanted.
Result<RankChoice> choose_layout(const Model& model, const Settings& settings,
                                 const Machine& machine, bool measure) {
  auto layout = Placer(model, settings, machine).place();
  if (!layout) return std::unexpected(layout.error());
  if (measure) return choose_ranks(model, settings, machine, std::move(*layout));
  return RankChoice{.settings = settings, .layout = std::move(*layout), .reason = {}};
}

// Sizes the context. Returns why there is no space for it, and what to do; empty: there is.
std::string size_choice(const Model& model, const EngineOptions& options, const Machine& machine,
                        RankChoice& choice) {
  const auto sized = size_context(model, choice.settings, machine, choice.layout);
  if (sized) return "";
  return with_memory_remedies(sized.error(), model, with_ranks_of(choice.settings, options),
                              *choice.settings.kernels, machine, choice.layout)
      .message;
}

}  // namespace

Result<MachinePlan> plan_machine(const EngineOptions& options, bool measure) {
  return plan_machine(options, Machine::read(/*with_gpus=*/true), measure);
}

Result<MachinePlan> plan_machine(const EngineOptions& options, const Machine& machine,
                                 bool measure) {
  const auto opened = open_planned_model(options, machine);
  if (!opened) return std::unexpected(opened.error());
  const auto& [file, model, draft, parsed] = *opened;
  const auto settings = fit_to_model(model, parsed);
  if (!settings) return std::unexpected(settings.error());
  auto choice = choose_layout(model, *settings, machine, measure);
  if (!choice) return std::unexpected(choice.error());
  const ModelInfo info = describe_model(file, model, options, choice->layout);
  const std::string misfit = size_choice(model, options, machine, *choice);
  MachinePlan plan = describe_plan(model, info, machine, *choice, misfit);
  if (draft) plan.draft->model = draft->file.parts().front().filename().string();
  if (!measure) {
    plan.verdict = "not measured";
    return plan;
  }
  if (auto estimated = estimate_speed(model, machine, *choice, plan); !estimated) {
    return std::unexpected(estimated.error());
  }
  return plan;
}

}  // namespace lockstep
