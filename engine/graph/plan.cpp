#include "engine/graph/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <string_view>
#include <variant>

namespace lockstep {
namespace {

constexpr std::string_view kArenaNames[] = {"none",     "weights", "scratch",
                                            "exchange", "kv",      "logits"};
static_assert(std::size(kArenaNames) == kArenaCount);
constexpr std::string_view kRowNames[] = {"tokens", "logits", "experts"};
constexpr std::string_view kFormNames[] = {"f32", "q8", "bf16", "bf16_dots"};
static_assert(std::size(kFormNames) == kActivationFormCount);
constexpr std::string_view kKvNames[] = {"f32", "f16", "bf16", "q8_0"};
constexpr std::string_view kPairNames[] = {"interleaved", "halves"};
constexpr std::string_view kElementwiseNames[] = {
    "zero",  "copy",     "select", "add",        "activation", "gate",
    "scale", "soft cap", "clamp",  "scale rows", "temperature"};
constexpr std::string_view kGatingNames[] = {"softmax of the chosen", "softmax", "sigmoid",
                                             "square root of softplus"};
constexpr std::string_view kIndexNames[] = {"", " positions", " segments"};
constexpr std::string_view kAttentionNames[] = {"f32", "bf16"};

template <typename Enum, size_t kCount>
std::string_view name(const std::string_view (&names)[kCount], Enum value) {
  return names[static_cast<size_t>(value)];
}

template <typename T>
std::string text(const ArenaOffset<T>& offset) {
  return offset ? fmt::format("{}+{}", name(kArenaNames, offset.arena), offset.bytes) : "none";
}

template <typename T>
std::string text(const ArenaOffset<T>& rows, size_t stride) {
  return fmt::format("{}/{}", text(rows), stride);
}

std::string text(const ChunkSums& chunks) {
  return text(chunks.sums, chunks.stride);
}

std::string text(const Forms& forms) {
  std::string all = fmt::format("{} columns", forms.columns);
  for (size_t form = 0; form < kActivationFormCount; ++form) {
    const FormBuffer& buffer = forms.buffers[form];
    if (buffer == FormBuffer()) continue;
    fmt::format_to(std::back_inserter(all), " {} {} of{}{}", kFormNames[form],
                   text(buffer.rows, buffer.stride_bytes), buffer.prompted ? " prompted" : "",
                   buffer.generated ? " generated" : "");
  }
  return all;
}

std::string text(const FormsOutput& output) {
  return fmt::format("({} from {}{})", text(output.forms), output.first_column,
                     output.gather ? " gather" : "");
}

std::string text(const NormFactor& norm) {
  return norm == NormFactor() ? ""
                              : fmt::format(" norm {} over {} epsilon {}", text(norm.chunks),
                                            norm.columns, norm.epsilon);
}

std::string text(const NormOutput& norm) {
  return fmt::format(" norm of {} weight {} sums {} {}", name(kRowNames, norm.rows),
                     text(norm.weight), text(norm.chunks), text(norm.output));
}

std::string text(const std::monostate&) {
  return "";
}

std::string text(const ResidualFinish& finish) {
  std::string all = " residual";
  for (const NormOutput& norm : finish.norms) all += text(norm);
  return all;
}

// SiLU goes without saying.
std::string text(const Activation& activation) {
  if (activation == Activation()) return "";
  if (activation == activation.function) {
    return fmt::format("{} ", name(kActivationNames, activation.function));
  }
  return fmt::format("{} {} ", name(kActivationNames, activation.function),
                     fmt::join(activation.parameters, " "));
}

std::string text(const GateFinish& finish) {
  return fmt::format(" gate {}{}", text(finish.activation), text(finish.output));
}

std::string text(const PlannedMatrix& matrix) {
  return fmt::format("{} {}x{} {}{}", traits(matrix.format).name, matrix.rows, matrix.columns,
                     text(matrix.data),
                     matrix.scale == 1 ? "" : fmt::format(" scale {}", matrix.scale));
}

std::string text(const ProductForms& forms) {
  return fmt::format("{}:{}", name(kFormNames, forms.prompted), name(kFormNames, forms.generated));
}

std::string text(const Routing& routing) {
  return fmt::format(" routing {} of {} chosen {} weights {}{} begins {} tokens {}",
                     routing.chosen_count, routing.expert_count, text(routing.chosen),
                     text(routing.weights), routing.weighs_inputs ? " of inputs" : "",
                     text(routing.row_begin), text(routing.row_tokens));
}

std::string text(const ExpertPart& part) {
  std::string all =
      fmt::format("({} to {} of", text(part.forms), text(part.output, part.output_stride));
  for (const PlannedMatrix& matrix : part.matrices) {
    fmt::format_to(std::back_inserter(all), " {}", text(matrix));
  }
  for (const ArenaOffset<const float>& bias : part.biases) {
    fmt::format_to(std::back_inserter(all), " bias {}", text(bias));
  }
  return all + ")";
}

// "tokens ", or "experts " with their routing.
std::string text(Rows rows, const Routing& routing) {
  return fmt::format("{}{} ", name(kRowNames, rows), routing == Routing() ? "" : text(routing));
}

std::string text(const std::optional<GatheredRows>& gathered) {
  return gathered
             ? fmt::format(" gathered {} of {} workers", text(gathered->rows), gathered->workers)
             : "";
}

std::string text(const WorkerProducts& products) {
  return fmt::format(" products {} of {} workers", text(products.rows, products.stride),
                     products.workers);
}

std::string text(const RowProducts& products) {
  return fmt::format(" products {} by row", text(products.rows, products.stride));
}

template <typename... Kinds>
std::string text(const std::variant<Kinds...>& kinds);

std::string text(const ClearPagesStep&) {
  return "clear pages";
}

std::string text(const RotaryTableStep& step) {
  return fmt::format("rotary table {} magnitude {} frequencies {}", text(step.table, step.stride),
                     step.magnitude, fmt::join(step.frequencies, " "));
}

std::string text(const EmbedStep& step) {
  return fmt::format("embed{} {} from row {} to {}{}", name(kIndexNames, step.index),
                     text(step.table), step.row_begin, text(step.output, step.output_stride),
                     step.gather ? " gather" : "");
}

std::string text(const NormStep& step) {
  return fmt::format("norm step {}{} columns {}{}", text(step.residual, step.residual_stride),
                     step.residual_rows == Rows::kTokens ? "" : " of logits", step.columns,
                     text(step.norm));
}

std::string text(const MatmulStep& step) {
  std::string all = fmt::format("product of {} input {}{}", name(kRowNames, step.rows),
                                text(step.input), text(step.norm));
  for (const MatmulPart& part : step.parts) {
    fmt::format_to(std::back_inserter(all), " part ({} {}{} bias {} to {}{}{})", text(part.matrix),
                   text(part.forms),
                   part.first_column == 0 ? "" : fmt::format(" from column {}", part.first_column),
                   text(part.bias), text(part.output, part.output_stride),
                   part.accumulate ? " accumulate" : "", part.remote ? " remote" : "");
  }
  return all + text(step.finish);
}

// The softmax of the chosen goes without saying.
std::string text(const Gating& gating) {
  return gating == Gating()
             ? ""
             : fmt::format(" by {}{} times {}{}, {} of {} groups by {}",
                           name(kGatingNames, gating.function),
                           gating.is_normalized ? " normalized" : "", gating.scale,
                           gating.weighs_inputs ? " of inputs" : "", gating.chosen_groups,
                           gating.group_count, gating.group_values);
}

std::string text(const RouteStep& step) {
  return fmt::format("route scores {}{}{}{}", text(step.scores, step.score_stride),
                     text(step.routing), text(step.gating),
                     step.bias ? " bias " + text(step.bias) : "");
}

std::string text(const ExpertGateStep& step) {
  return fmt::format("experts' gate input {}{}{}{} gate {} up {} {}to {}", text(step.input),
                     text(step.norm), text(step.routing), text(step.gathered), text(step.gate),
                     text(step.up), text(step.activation), text(step.output));
}

std::string text(const ExpertSumStep& step) {
  return fmt::format("experts' sum input {}{} down {}{}{}{}", text(step.input), text(step.routing),
                     text(step.down), step.accumulate ? " accumulate" : "", text(step.products),
                     text(step.finish));
}

std::string text(const PrepareHeads& prepare) {
  return fmt::format("keys {} values {} norms {} {} epsilon {}{} rotary {} {} dimensions {}",
                     text(prepare.keys, prepare.key_stride), text(prepare.values),
                     text(prepare.query_norm), text(prepare.key_norm), prepare.epsilon,
                     prepare.norm_is_last ? " last" : "", name(kPairNames, prepare.pairs),
                     text(prepare.rotary.rows, prepare.rotary.stride), prepare.rotary.dimensions);
}

// The traits that most models' attention lacks, where it has them.
std::string traits_text(const AttendStep& step) {
  std::string all;
  if (step.value_dimension != step.head_dimension) {
    all += fmt::format(" values of {}/{}", step.value_dimension, step.prepare.value_stride);
  }
  if (step.section != 0) all += fmt::format(" section {}", step.section);
  if (step.ahead == kAllAhead) {
    all += " all ahead";
  } else if (step.ahead != 0) {
    all += fmt::format(" {} ahead", step.ahead);
  }
  if (step.score_cap != 0) all += fmt::format(" cap {}", step.score_cap);
  if (!step.slopes.empty()) all += fmt::format(" slopes {}", fmt::join(step.slopes, " "));
  if (step.sinks) all += fmt::format(" sinks {}", text(step.sinks));
  return all;
}

std::string text(const Temperature& temperature) {
  if (temperature == Temperature()) return "";
  return fmt::format(" temperature {} of {} tokens offset {}", temperature.scale,
                     temperature.tokens, temperature.offset);
}

std::string text(const AttendStep& step) {
  return fmt::format(
      "attend layer {} queries {} heads {} of {} KV heads group {} offset {} dimension {} window "
      "{} scale {}{} prompts {} {} to {} {}",
      step.layer, text(step.queries, step.query_stride), step.head_count, step.kv_head_count,
      step.group, step.group_offset, step.head_dimension, step.window, step.scale,
      traits_text(step), name(kAttentionNames, step.prompt_attention), text(step.prepare),
      text(step.output, step.output_stride), step.forms ? text(*step.forms) : "");
}

std::string text(const FormStep& step) {
  return fmt::format("form {}{} columns {} {}",
                     step.rows == Rows::kTokens ? "" : text(step.rows, step.routing),
                     text(step.input, step.input_stride), step.columns, text(step.output));
}

std::string text(const PlainRows& rows) {
  return text(rows.rows, rows.stride);
}

std::string text(const PlainOutput& output) {
  std::string all = fmt::format(" to {}", text(output.rows, output.stride));
  for (const FormsOutput& forms : output.forms)
    fmt::format_to(std::back_inserter(all), " {}", text(forms));
  return all;
}

std::string text(const ElementwiseStep& step) {
  return fmt::format("{} {}{}{} of {}{} and {} columns {}{}",
                     name(kElementwiseNames, step.function), text(step.activation), step.scale,
                     text(step.temperature), text(step.rows, step.routing), text(step.x),
                     text(step.y), step.columns, text(step.output));
}

std::string text(const HeadsStep& step) {
  return fmt::format(
      "heads {} count {} dimension {}{}{} norm {} epsilon {} rotary {} {} dimensions {} to {}",
      text(step.input), step.head_count, step.head_dimension, step.is_normed ? " normed" : "",
      step.subtracts_mean ? " without mean" : "", text(step.norm, step.norm_stride), step.epsilon,
      name(kPairNames, step.pairs), text(step.rotary.rows, step.rotary.stride),
      step.rotary.dimensions, text(step.output, step.output_stride));
}

std::string text(const CopyHeadsStep& step) {
  std::string all =
      fmt::format("copy of heads of {}{} columns", text(step.rows, step.routing), step.columns);
  for (const HeadColumns& part : step.parts) {
    fmt::format_to(std::back_inserter(all), " part ({} by {} columns {} from {})", text(part.input),
                   part.head_stride, part.columns, part.first);
  }
  return all + text(step.output);
}

std::string text(const NormSumsStep& step) {
  return fmt::format("norm sums of {} {} columns {} squares {} sums {}{}",
                     name(kRowNames, step.rows), text(step.input), step.columns, text(step.chunks),
                     text(step.sums), step.gather ? " gather" : "");
}

std::string text(const NormScaleStep& step) {
  return fmt::format("norm scale of {} {} columns {} weight {} bias {}{} sums {}{}",
                     name(kRowNames, step.rows), text(step.input), step.columns, text(step.weight),
                     text(step.bias), text(step.norm), text(step.sums), text(step.output));
}

std::string text(const ExpertProductStep& step) {
  return fmt::format("experts' product input {}{}{}{} {}", text(step.input), text(step.norm),
                     text(step.routing), text(step.gathered), text(step.part));
}

std::string text(const AllReduceStep& step) {
  return fmt::format("reduce {} columns {} of ranks {} from {} to {} bf16 {} {}",
                     name(kRowNames, step.rows), step.columns, fmt::join(step.contributors, ","),
                     text(step.partial, step.partial_stride), text(step.output, step.output_stride),
                     text(step.bf16_partial), text(step.bf16_sum));
}

std::string text(const NodeAreas& areas) {
  return fmt::format("node: partials {} blocks {} arrived {}, generated ends {}, row weights {}",
                     text(areas.partials.rows, areas.partials.stride), areas.partials.block_count,
                     text(areas.partials.arrived), text(areas.generated_end),
                     text(areas.row_weights));
}

std::string text(const GpuAreas& areas) {
  const GpuBatchLimits& limits = areas.limits;
  const GpuPartials& partials = areas.partials;
  return fmt::format(
      "gpu: batch {} of {} tokens {} sequences {} x {} pages {} logits {} units, frequencies {}, "
      "partials {} sums {} arrived {} units {} heads {}, choice rows {}, candidates {} {} {} bytes "
      "{}, panels of {} rows {} bytes {} sums {} library {}",
      text(areas.batch), limits.tokens, limits.sequences, limits.groups, limits.pages,
      limits.logits, limits.attention_units, text(areas.frequencies), text(partials.rows),
      text(partials.sums), text(partials.arrived), partials.unit_count, partials.head_count,
      text(areas.choice_rows), text(areas.candidate_words), text(areas.logit_maxima),
      text(areas.draw_sums), areas.candidate_bytes, areas.panel_limits.rows,
      areas.panel_limits.bytes, text(areas.panel), text(areas.panel_sums), text(areas.library));
}

std::string text(const WeightSlice& slice) {
  return fmt::format("weight {}: rows {}-{} columns {}-{} at {} bytes {}", slice.weight,
                     slice.row_begin, slice.row_end, slice.column_begin, slice.column_end,
                     slice.offset, slice.size_bytes);
}

std::string text(const KvLayer& layer) {
  return fmt::format("kv layer: group {} heads {} of {} and {} at {}/{}/{}", layer.group,
                     layer.head_count, layer.key_dimension, layer.stored_value_dimension(),
                     layer.offset, layer.head_stride_bytes, layer.page_stride_bytes);
}

std::string text(const KvLayout& kv) {
  std::string all = fmt::format("kv: {} pages {} parts {} of {}", name(kKvNames, kv.format),
                                kv.page_count, kv.part_count, kv.part_bytes);
  for (const AttentionWindow& window : kv.windows) {
    all += fmt::format(" window {}", window.tokens);
    if (window.section != 0) all += fmt::format(" section {}", window.section);
  }
  for (const KvLayer& layer : kv.layers) all += fmt::format("\n{}", text(layer));
  return all;
}

std::string text(const HiddenRows& hidden) {
  return fmt::format("hidden rows: {} columns {}-{} of {} weight {} epsilon {}",
                     text(hidden.residual, hidden.residual_stride), hidden.columns.begin,
                     hidden.columns.end, hidden.width, text(hidden.norm_weight), hidden.epsilon);
}

template <typename... Kinds>
std::string text(const std::variant<Kinds...>& kinds) {
  return std::visit([](const auto& kind) { return text(kind); }, kinds);
}

}  // namespace

std::string plan_text(const Plan& plan) {
  std::string all = fmt::format(
      "rank {} of {}: {} tokens, {} rows of logits {} of {}\n"
      "bytes: weights {} scratch {} exchange {} kv {} logits {}\n{}\n{}\n{}\n",
      plan.rank, plan.rank_count, plan.batch_tokens, plan.logit_rows,
      text(plan.logits, plan.logits_stride), plan.vocabulary_size, plan.weight_bytes,
      plan.scratch_bytes, plan.exchange_bytes, plan.kv.size_bytes(), plan.logits_bytes,
      text(plan.kv), text(plan.hidden), text(plan.areas));
  for (const WeightSlice& slice : plan.weights) all += text(slice) + "\n";
  for (size_t index = 0; index < plan.steps.size(); ++index) {
    const Step& step = plan.steps[index];
    fmt::format_to(std::back_inserter(all), "step {}: {}{}\n", index, text(step.work),
                   step.meet == Meet::kAllRanks ? "; all ranks meet" : "");
  }
  return all;
}

}  // namespace lockstep
