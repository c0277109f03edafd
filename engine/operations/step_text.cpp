#include "engine/operations/step_text.h"

#include <fmt/ranges.h>

#include <iterator>

#include "engine/base/format.h"
#include "engine/tensor/formats.h"

namespace lockstep {
namespace {

constexpr std::string_view kArenaNames[] = {"none",     "weights", "scratch",
                                            "exchange", "kv",      "logits"};
static_assert(std::size(kArenaNames) == kArenaCount);
constexpr std::string_view kFormNames[] = {"f32", "q8", "bf16", "bf16_dots"};
static_assert(std::size(kFormNames) == kActivationFormCount);

}  // namespace

std::string text_of(Arena arena, size_t bytes) {
  return arena == Arena::kNowhere ? "none"
                                  : fmt::format("{}+{}", name_in(kArenaNames, arena), bytes);
}

std::string text_of(const ChunkSums& chunks) {
  return text_of(chunks.sums, chunks.stride);
}

std::string text_of(const Forms& forms) {
  std::string all = fmt::format("{} columns", forms.columns);
  for (size_t form = 0; form < kActivationFormCount; ++form) {
    const FormBuffer& buffer = forms.buffers[form];
    if (buffer == FormBuffer()) continue;
    fmt::format_to(std::back_inserter(all), " {} {} of{}{}", kFormNames[form],
                   text_of(buffer.rows, buffer.stride_bytes), buffer.prompted ? " prompted" : "",
                   buffer.generated ? " generated" : "");
  }
  return all;
}

std::string text_of(const FormsOutput& output) {
  return fmt::format("({} from {}{})", text_of(output.forms), output.first_column,
                     output.gather ? " gather" : "");
}

std::string text_of(const NormFactor& norm) {
  return norm == NormFactor() ? ""
                              : fmt::format(" norm {} over {} epsilon {}", text_of(norm.chunks),
                                            norm.columns, norm.epsilon);
}

std::string text_of(const NormOutput& norm) {
  return fmt::format(" norm of {} weight {} sums {} {}", name_in(kRowNames, norm.rows),
                     text_of(norm.weight), text_of(norm.chunks), text_of(norm.output));
}

std::string text_of(const PlannedMatrix& matrix) {
  return fmt::format("{} {}x{} {}{}", traits(matrix.format).name, matrix.rows, matrix.columns,
                     text_of(matrix.data),
                     matrix.scale == 1 ? "" : fmt::format(" scale {}", matrix.scale));
}

std::string text_of(const ProductForms& forms) {
  return fmt::format("{}:{}", name_in(kFormNames, forms.prompted),
                     name_in(kFormNames, forms.generated));
}

std::string text_of(const Routing& routing) {
  return fmt::format(" routing {} of {} chosen {} weights {}{} begins {} tokens {}",
                     routing.chosen_count, routing.expert_count, text_of(routing.chosen),
                     text_of(routing.weights), routing.weighs_inputs ? " of inputs" : "",
                     text_of(routing.row_begin), text_of(routing.row_tokens));
}

std::string text_of(const PlainRows& rows) {
  return text_of(rows.rows, rows.stride);
}

std::string text_of(const PlainOutput& output) {
  std::string all = fmt::format(" to {}", text_of(output.rows, output.stride));
  for (const FormsOutput& forms : output.forms)
    fmt::format_to(std::back_inserter(all), " {}", text_of(forms));
  return all;
}

std::string text_of(Rows rows, const Routing& routing) {
  return fmt::format("{}{} ", name_in(kRowNames, rows),
                     routing == Routing() ? "" : text_of(routing));
}

std::string text_of(const Activation& activation) {
  if (activation == Activation()) return "";
  if (activation == activation.function) {
    return fmt::format("{} ", name_in(kActivationNames, activation.function));
  }
  return fmt::format("{} {} ", name_in(kActivationNames, activation.function),
                     fmt::join(activation.parameters, " "));
}

}  // namespace lockstep
