#include "engine/placement/draft_layout.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/graph/fusion/groups.h"
#include "engine/graph/kv_layout.h"

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

Result<void> check_draft_devices(const DeviceRules& rules) {
  if (rules.traits.takes_draft_models) return {};
  return invalid_input(
      "a draft model computes on processors alone, and GPUs are to compute: use --devices cpu, or "
      "{}",
      kOtherDrafter);
}

Result<DraftLayout> lay_out_draft(const Model& draft, const Settings& settings,
                                  const DeviceRules& rules, const std::vector<RankPlace>& places,
                                  Strategy strategy, size_t batch_tokens) {
  if (auto usable = check_draft_devices(rules); !usable) return std::unexpected(usable.error());
  DraftLayout made = {.model = &draft,
                      .split = {},
                      .plan_options = {},
                      .own_pages = settings.sequence_count,
                      .sizes = {}};
  auto split = split_graph(draft.graph, shares_of(places), strategy);
  if (!split) {
    return invalid_input(
        "the draft model cannot be split as the model is: {}. Use --ranks 1, or {}",
        split.error().message, kOtherDrafter);
  }
  made.split = std::move(*split);
  made.plan_options = rules.plan_options(draft, settings, batch_tokens);
  made.plan_options.logit_rows = settings.sequence_count;
  if (!fits_heads(settings.kv_format, draft.graph)) made.plan_options.kv_format = KvFormat::kF16;
  made.sizes = draft_sizes(made, 0, places);
  return made;
}

std::vector<RankSizes> draft_sizes(const DraftLayout& draft, size_t kv_pages,
                                   std::span<const RankPlace> places) {
  return rank_sizes(*draft.model, draft.split, draft.plan_options, kv_pages + draft.own_pages,
                    places, /*gpus_linked=*/true);
}

void set_draft_pages(DraftLayout& draft, size_t kv_pages, std::span<const RankPlace> places) {
  draft.sizes = draft_sizes(draft, kv_pages, places);
  draft.plan_options.kv_pages = kv_pages + draft.own_pages;
}

}  // namespace lockstep
