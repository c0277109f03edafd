#include "engine/placement/draft_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "engine/graph/fusion/groups.h"
#include "engine/graph/kv_layout.h"
#include "engine/placement/device_rules.h"

namespace lockstep {
namespace {

// Why its cache's pages cannot be shared; empty: they can. `given`: its rows that another
// model reads, which drafts; null: none does.
std::string_view obstacle_of(const Model& model, const GivenRows* given) {
  const bool reads_rows = given != nullptr;
  if (model.output != ModelOutput::kLogits) return "generates no tokens";
  if (model.graph.sees_ahead()) return "has tokens that see those behind them";
  if (model.graph.has_states() && !reads_rows) {
    return "has layers that keep a state of each sequence";
  }
  if (reads_rows && given->layers.empty() && !hidden_residual(model.graph)) {
    return "gives no hidden rows";
  }
  const bool keeps_all = std::ranges::any_of(
      group_kv_layers(model.graph), [](const KvGroup& group) { return group.window.sees_all(); });
  return keeps_all ? "" : "has no layer that sees all tokens";
}

bool fits_heads(const KvFormats& format, const Graph& graph) {
  return std::ranges::all_of(graph.nodes(), [&](const GraphNode& node) {
    return node.operation != Operation::kAttention ||
           (kv_format_fits(format.keys, node.head_dimension) &&
            kv_format_fits(format.values, node.value_dimension));
  });
}

bool is_own_block(const Model& draft) {
  return draft.graph.given_columns() > 0 && draft.given.is_of_own_block();
}

std::string_view title_of(const Model& draft) {
  return is_own_block(draft) ? "the block that drafts" : "the draft model";
}

// A sequence has a page of the draft's own behind its last one.
PlanOptions options_with(const DraftLayout& draft, const CachePages& pages) {
  PlanOptions options = draft.plan_options;
  options.sequence_pages = pages.of_sequence == 0 ? 0 : pages.of_sequence + 1;
  return options;
}

}  // namespace

Result<void> check_draft_models(const Model& model, const Model& draft) {
  const bool reads_rows = draft.graph.given_columns() > 0;
  for (const auto& [which, one] :
       {std::pair<std::string_view, const Model&>{"model", model},
        std::pair<std::string_view, const Model&>{"draft model", draft}}) {
    const bool is_read = reads_rows && &one == &model;
    const std::string_view obstacle = obstacle_of(one, is_read ? &draft.given : nullptr);
    if (obstacle.empty()) continue;
    return invalid_input("the {} ({}) {}: tokens cannot be drafted by another model then; use {}",
                         which, one.architecture, obstacle, kOtherDrafter);
  }
  return {};
}

Result<DraftLayout> lay_out_draft(const Settings& settings, const Machine& machine,
                                  const ModelPlaces& model, Strategy strategy) {
  const Model& draft = *settings.draft_model;
  const DeviceRules& rules = rules_of(model.devices);
  if (auto usable = rules.check(draft.graph, settings, machine, model.devices); !usable) {
    return invalid_input("{} ({}) computes where the model does: {}; or use {}", title_of(draft),
                         draft.architecture, usable.error().message, kOtherDrafter);
  }
  if (settings.among_hosts && !rules.traits.drafts_among_hosts) {
    return invalid_input(
        "{} ({}) drafts on the GPUs of one host, and several compute: use --devices cpu, or {}",
        title_of(draft), draft.architecture, kOtherDrafter);
  }
  if (!rules.traits.gives_kept_rows && !draft.given.is_of_own_block()) {
    return invalid_input(
        "{} ({}) reads what layers of the model keep, which GPUs do not hand out: use --devices "
        "cpu, or {}",
        title_of(draft), draft.architecture, kOtherDrafter);
  }
  DraftLayout made = {.model = &draft,
                      .split = {},
                      .plan_options = {},
                      .own_pages = settings.sequence_count,
                      .gpus_linked = model.gpus_linked,
                      .sizes = {}};
  auto split = split_graph(draft.graph, shares_of(model.places), strategy);
  if (!split) {
    const std::string remedy = rules.traits.rank_count_is_free
                                   ? "--ranks 1"
                                   : fmt::format("--devices gpu{}", model.devices.gpus.front());
    return invalid_input("{} cannot be split as the model is: {}. Use {}, or {}", title_of(draft),
                         split.error().message, remedy, kOtherDrafter);
  }
  made.split = std::move(*split);
  made.plan_options = rules.plan_options(draft, settings, model.options.batch_tokens);
  made.plan_options.logit_rows = settings.sequence_count;
  if (!fits_heads(settings.kv_format, draft.graph)) made.plan_options.kv_format = KvFormat::kF16;
  made.sizes = draft_sizes(made, {.of_sequence = model.options.sequence_pages}, model.places);
  return made;
}

std::vector<RankSizes> draft_sizes(const DraftLayout& draft, const CachePages& pages,
                                   std::span<const RankPlace> places) {
  return rank_sizes(*draft.model, draft.split, options_with(draft, pages),
                    pages.all + draft.own_pages, places, draft.gpus_linked);
}

void set_draft_pages(DraftLayout& draft, const CachePages& pages,
                     std::span<const RankPlace> places) {
  draft.sizes = draft_sizes(draft, pages, places);
  draft.plan_options = options_with(draft, pages);
  draft.plan_options.kv_pages = pages.all + draft.own_pages;
}

}  // namespace lockstep
