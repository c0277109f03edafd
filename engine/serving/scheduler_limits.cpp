#include "engine/serving/scheduler_limits.h"

#include <random>

#include "engine/base/log.h"

namespace lockstep {

SchedulerLimits scheduler_limits(const SchedulerSubject& of) {
  SchedulerLimits limits;
  limits.page_tokens = kPageTokens;
  limits.page_count = of.layout.plan_options.kv_pages;
  limits.windows = of.plan.kv.windows;
  limits.sequence_count = of.settings.sequence_count;
  limits.batch_tokens = of.layout.plan_options.batch_tokens;
  limits.logit_rows = of.layout.plan_options.logit_rows;
  if (of.executor.attention_units() > 0) limits.attention_units = of.executor.attention_units();
  limits.unit_keys = kPageTokens;
  limits.token_units_max = kGpuTokenUnits;
  // Only where generated tokens have arithmetic of their own can it be seen how a page was
  // computed.
  limits.share_generated = of.layout.rules().generated_pages_are_shared(of.layout.plan_options);
  limits.short_prompt = of.layout.rules().short_prompt();
  limits.whole_sequences = of.model.graph.sees_ahead();
  limits.state_slots = of.plan.states.slot_count;
  if (limits.state_slots > 0) {
    spdlog::info(
        "the model keeps a state of each sequence: {} slots for those that run at once, {} for "
        "states from before a draft, {} for checkpoints, behind which the prefix cache finds "
        "prompts",
        limits.sequence_count, of.settings.draft_slots(),
        limits.state_slots - limits.sequence_count - of.settings.draft_slots());
  }
  limits.draft_tokens = of.options.draft_tokens;
  const DrafterChoice& drafters = of.settings.drafters;
  if (of.settings.drafts && !limits.whole_sequences) {
    const bool are_two = drafters.row != nullptr && !drafters.stage.empty();
    spdlog::info("tokens are drafted by {}{}{} where that pays",
                 drafters.row != nullptr ? drafters.row->name : "", are_two ? " and " : "",
                 drafters.stage);
  }
  limits.targets = {of.options.first_token_target_seconds, of.options.token_target_seconds};
  limits.cache_events = of.cache_events;
  std::random_device random;
  for (uint64_t& word : limits.cache_secret) word = (uint64_t{random()} << 32U) | random();
  return limits;
}

}  // namespace lockstep
