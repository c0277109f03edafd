#include "engine/operations/plan.h"

#include <iterator>
#include <string_view>
#include <variant>

#include "engine/base/format.h"
#include "engine/operations/step_text.h"

namespace lockstep {
namespace {

constexpr std::string_view kKvNames[] = {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_h"};

std::string text_of(const NodeAreas& areas) {
  return fmt::format("node: partials {} blocks {} arrived {}, generated ends {}, row weights {}",
                     text_of(areas.partials.rows, areas.partials.stride),
                     areas.partials.block_count, text_of(areas.partials.arrived),
                     text_of(areas.generated_end), text_of(areas.row_weights));
}

std::string text_of(const GpuAreas& areas) {
  const GpuBatchLimits& limits = areas.limits;
  const GpuPartials& partials = areas.partials;
  const std::string texts =
      limits.lengths > 0 ? fmt::format(" {} lengths {} segments", limits.lengths, limits.segments)
                         : "";
  const std::string constants =
      areas.constants ? fmt::format(" constants {}", text_of(areas.constants)) : "";
  return fmt::format(
      "gpu: batch {} of {} tokens {} sequences {} x {} pages {} logits {} units{}, frequencies "
      "{}{}, "
      "partials {} sums {} arrived {} units {} heads {}, choice rows {}, candidates {} {} {} picks "
      "{} "
      "bytes {}, panels of {} rows {} bytes {} sums {} library {}",
      text_of(areas.batch), limits.tokens, limits.sequences, limits.groups, limits.pages,
      limits.logits, limits.attention_units, texts, text_of(areas.frequencies), constants,
      text_of(partials.rows), text_of(partials.sums), text_of(partials.arrived),
      partials.unit_count, partials.head_count, text_of(areas.choice_rows),
      text_of(areas.candidate_words), text_of(areas.logit_maxima), text_of(areas.draw_sums),
      text_of(areas.picks), areas.candidate_bytes, areas.panel_limits.rows,
      areas.panel_limits.bytes, text_of(areas.panel), text_of(areas.panel_sums),
      text_of(areas.library));
}

std::string text_of(const WeightSlice& slice) {
  return fmt::format("weight {}: rows {}-{} columns {}-{} at {} bytes {}", slice.weight,
                     slice.row_begin, slice.row_end, slice.column_begin, slice.column_end,
                     slice.offset, slice.size_bytes);
}

std::string text_of(const KvLayer& layer) {
  return fmt::format("kv layer: group {} heads {} of {} and {} at {}/{}/{}", layer.group,
                     layer.head_count, layer.key_dimension, layer.stored_value_dimension(),
                     layer.offset, layer.head_stride_bytes, layer.page_stride_bytes);
}

std::string text_of(const KvLayout& kv) {
  std::string all = fmt::format("kv: {} pages {} parts {} of {}", name_in(kKvNames, kv.format.keys),
                                kv.page_count, kv.part_count, kv.part_bytes);
  if (kv.format.values != kv.format.keys) {
    all += fmt::format(" values {}", name_in(kKvNames, kv.format.values));
  }
  for (const AttentionWindow& window : kv.windows) {
    all += fmt::format(" window {}", window.tokens);
    if (window.section != 0) all += fmt::format(" section {}", window.section);
  }
  for (const KvLayer& layer : kv.layers) all += fmt::format("\n{}", text_of(layer));
  return all;
}

std::string text_of(const StateLayout& states) {
  if (states.slot_count == 0) return "";
  return fmt::format("states: {} slots of {} bytes\n", states.slot_count, states.slot_bytes);
}

std::string text_of_given(size_t columns) {
  return columns == 0 ? "" : fmt::format("given rows: {} columns\n", columns);
}

std::string text_of(const HiddenRows& hidden) {
  return fmt::format("hidden rows: {} columns {}-{} of {} weight {} epsilon {}",
                     text_of(hidden.residual, hidden.residual_stride), hidden.columns.begin,
                     hidden.columns.end, hidden.width, text_of(hidden.norm_weight), hidden.epsilon);
}

std::string text_of(const std::vector<KeptRows>& kept) {
  std::string all;
  for (const KeptRows& each : kept) {
    all += fmt::format("kept rows: {} columns {}-{} of {}\n", text_of(each.rows, each.stride),
                       each.columns.begin, each.columns.end, each.width);
  }
  return all;
}

}  // namespace

std::string plan_text(const Plan& plan) {
  std::string all = fmt::format(
      "rank {} of {}: {} tokens{}, {} rows of logits {} of {}\n"
      "bytes: weights {} scratch {} exchange {} kv {} logits {}\n{}\n{}{}{}\n{}{}\n",
      plan.rank, plan.rank_count, plan.batch_tokens,
      plan.chunk_tokens < plan.batch_tokens ? fmt::format(" in chunks of {}", plan.chunk_tokens)
                                            : "",
      plan.logit_rows, text_of(plan.logits, plan.logits_stride), plan.vocabulary_size,
      plan.weight_bytes, plan.scratch_bytes, plan.exchange_bytes, plan.kv.size_bytes(),
      plan.logits_bytes, text_of(plan.kv), text_of(plan.states), text_of_given(plan.given_columns),
      text_of(plan.hidden), text_of(plan.kept),
      std::visit([](const auto& areas) { return text_of(areas); }, plan.areas));
  for (const WeightSlice& slice : plan.weights) all += text_of(slice) + "\n";
  for (size_t index = 0; index < plan.steps.size(); ++index) {
    const Step& step = plan.steps[index];
    fmt::format_to(std::back_inserter(all), "step {}: {}{}\n", index, step_text(step.work),
                   step.meet == Meet::kAllRanks ? "; all ranks meet" : "");
  }
  return all;
}

}  // namespace lockstep
