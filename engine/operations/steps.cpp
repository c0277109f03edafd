#include "engine/operations/steps.h"

#include "engine/pass/pass.h"

namespace lockstep {

std::string step_text(const StepWork& step) {
  return std::visit([](const auto& kind) { return text_of(kind); }, step);
}

void run_step(const StepWork& step, const Pass& pass, TaskCounter& tasks) {
  std::visit([&](const auto& kind) { run(kind, pass, tasks); }, step);
}

void exchange_step(const StepWork& step, const Pass& pass, TaskCounter& tasks) {
  if (std::holds_alternative<AllReduceStep>(step)) return run_step(step, pass, tasks);
  if (const auto* embed = std::get_if<EmbedStep>(&step)) push_embedded_rows(*embed, pass);
  if (const auto* sums = std::get_if<NormSumsStep>(&step)) push_norm_sums(*sums, pass);
  if (const auto* form = std::get_if<FormStep>(&step)) push_formed_rows(*form, pass);
}

}  // namespace lockstep
