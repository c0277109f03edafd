#include "engine/runtime/gpu/gpu_value_launches.h"

#include "engine/base/check.h"

namespace lockstep {

GpuRowSet row_set(Rows rows) {
  return rows == Rows::kLogits ? GpuRowSet::kLogits : GpuRowSet::kTokens;
}

GpuRows GpuValueLaunches::rows(const FormsOutput& output) const {
  CHECK(!output.gather || alone_, "GPUs push nothing into one another's activations");
  return own_rows(output);
}

GpuRows GpuValueLaunches::own_rows(const FormsOutput& output) const {
  const Forms& forms = output.forms;
  CHECK(!forms[ActivationForm::kQ8].is_read() && !forms[ActivationForm::kBf16Dots].is_read(),
        "a GPU's activations are bf16 or f32");
  GpuRows rows;
  if (const FormBuffer& bf16 = forms[ActivationForm::kBf16]; bf16.is_read()) {
    rows.bf16 = reinterpret_cast<uint16_t*>(at(bf16.rows)) + output.first_column;
    rows.bf16_stride = bf16.stride_bytes / sizeof(uint16_t);
  }
  if (const FormBuffer& f32 = forms[ActivationForm::kF32]; f32.is_read()) {
    rows.f32 = reinterpret_cast<float*>(at(f32.rows)) + output.first_column;
    rows.f32_stride = f32.stride_bytes / sizeof(float);
  }
  return rows;
}

// A value that no other rank has copies of has one destination in forms.
GpuValues GpuValueLaunches::values(const PlainOutput& output) const {
  CHECK(output.forms.size() <= 1, "{} forms of a GPU's values", output.forms.size());
  GpuValues place = {.floats = at(output.rows), .stride = output.stride};
  if (!output.forms.empty()) place.rows = rows(output.forms.front());
  return place;
}

GpuWalk GpuValueLaunches::walk(Rows rows, const Routing& routing) const {
  GpuWalk all = {.batch = batch_, .which = row_set(rows)};
  if (rows == Rows::kExperts) {
    all.rows_each = static_cast<unsigned>(routing.chosen_count);
    all.row_tokens = at(routing.row_tokens);
  }
  return all;
}

GpuElementwise GpuValueLaunches::launch(const FormStep& step) const {
  return {.walk = walk(step.rows, step.routing),
          .x = at(step.input),
          .x_stride = step.input_stride,
          .columns = step.columns,
          .output = {.rows = own_rows(step.output)}};
}

GpuElementwise GpuValueLaunches::launch(const GivenRowsStep& step) const {
  return {.walk = walk(Rows::kTokens, {}),
          .x = given_rows_,
          .x_stride = step.columns,
          .columns = step.columns,
          .output = values(step.output)};
}

GpuElementwise GpuValueLaunches::launch(const ElementwiseStep& step) const {
  const ElementwiseFunction& function = *step.function;
  const bool is_temperature = function.gpu_function == GpuFunction::kTemperature;
  return {.walk = walk(step.rows, step.routing),
          .function = function.gpu_function,
          .selects = function.selects,
          .activation = step.activation,
          .scale = is_temperature ? step.temperature.scale : step.scale,
          .period = static_cast<uint32_t>(step.temperature.tokens),
          .offset = static_cast<uint32_t>(step.temperature.offset),
          .x = at(step.x.rows),
          .x_stride = step.x.stride,
          .y = at(step.y.rows),
          .y_stride = step.y.stride,
          .columns = step.columns,
          .output = values(step.output)};
}

GpuChunkSums GpuValueLaunches::launch(const NormSumsStep& sums) const {
  return {.walk = walk(sums.rows, {}),
          .x = at(sums.input.rows),
          .x_stride = sums.input.stride,
          .columns = sums.columns,
          .sums = at(sums.chunks.sums),
          .sum_stride = sums.chunks.stride};
}

GpuWholeNorm GpuValueLaunches::launch(const NormScaleStep& step, const NormSumsStep& sums) const {
  GpuNormFactor factor;
  if (sums.gather || step.columns != step.norm.columns) {
    factor = {.chunk_sums = at(step.norm.chunks.sums),
              .stride = step.norm.chunks.stride,
              .columns = step.norm.columns,
              .epsilon = step.norm.epsilon};
  }
  return {.walk = walk(step.rows, {}),
          .x = at(step.input.rows),
          .x_stride = step.input.stride,
          .columns = step.columns,
          .subtracts_mean = static_cast<bool>(step.sums.sums),
          .epsilon = step.norm.epsilon,
          .weight = at(step.weight),
          .bias = at(step.bias),
          .output = values(step.output),
          .factor = factor};
}

GpuHeadRows GpuValueLaunches::launch(const HeadsStep& step) const {
  return {.walk = walk(Rows::kTokens, {}),
          .input = at(step.input.rows),
          .input_stride = step.input.stride,
          .head_count = static_cast<unsigned>(step.head_count),
          .head_dimension = static_cast<unsigned>(step.head_dimension),
          .is_normed = step.is_normed,
          .subtracts_mean = step.subtracts_mean,
          .norm = at(step.norm),
          .norm_stride = step.norm_stride,
          .epsilon = step.epsilon,
          .pairs = step.pairs,
          .rotary_table = at(step.rotary.rows),
          .rotary_stride = step.rotary.stride,
          .rotary_dimensions = static_cast<unsigned>(step.rotary.dimensions),
          .output = at(step.output),
          .output_stride = step.output_stride};
}

GpuHeadCopy GpuValueLaunches::launch(const CopyHeadsStep& step) const {
  GpuHeadCopy copy = {.walk = walk(step.rows, step.routing),
                      .columns = step.columns,
                      .output = values(step.output)};
  CHECK(step.parts.size() <= kGpuHeadParts, "{} parts of heads", step.parts.size());
  for (const HeadColumns& part : step.parts) {
    copy.parts[copy.part_count++] = {.input = at(part.input.rows),
                                     .stride = part.input.stride,
                                     .head_stride = part.head_stride,
                                     .first = part.first,
                                     .columns = part.columns};
  }
  return copy;
}

GpuRowMeans GpuValueLaunches::launch(const MeanStep& step) const {
  return {.walk = walk(Rows::kLogits, {}),
          .x = at(step.x.rows),
          .x_stride = step.x.stride,
          .columns = step.columns,
          .output = values(step.output)};
}

GpuElementwise GpuValueLaunches::launch_gate(const MatmulStep& step, const GateFinish& gate) const {
  const MatmulPart& first = step.parts.front();
  const MatmulPart& last = step.parts.back();
  const bool gates = step.parts.size() > 1;
  return {.walk = walk(step.rows, {}),
          .function = gates ? GpuFunction::kGate : GpuFunction::kActivation,
          .activation = gate.activation,
          .x = at(first.output),
          .x_stride = first.output_stride,
          .y = gates ? at(last.output) : nullptr,
          .y_stride = last.output_stride,
          .columns = first.matrix.rows,
          .output = {.rows = rows(gate.output)}};
}

GpuElementwise GpuValueLaunches::launch_gate(const ExpertGateStep& step) const {
  GpuElementwise gate = launch_biases(step.gate, step.routing);
  gate.function = GpuFunction::kGate;
  gate.activation = step.activation;
  gate.y = at(step.up.output);
  gate.y_stride = step.up.output_stride;
  gate.y_biases = biases_of(step.up);
  gate.output = {.rows = rows(step.output)};
  return gate;
}

GpuElementwise GpuValueLaunches::launch_biases(const ExpertPart& part,
                                               const Routing& routing) const {
  return {.walk = walk(Rows::kExperts, routing),
          .x = at(part.output),
          .x_stride = part.output_stride,
          .weights = routing.weighs_inputs ? at(routing.weights) : nullptr,
          .choice_rows = choice_rows_,
          .x_biases = biases_of(part),
          .row_begin = at(routing.row_begin),
          .expert_count = routing.expert_count,
          .columns = part.matrices.front().rows,
          .output = {.floats = at(part.output), .stride = part.output_stride}};
}

GpuRowBiases GpuValueLaunches::biases_of(const ExpertPart& part) const {
  const auto& biases = part.biases;
  if (biases.empty()) return {};
  const auto places =
      even_places(biases.size(), [&](size_t expert) { return biases[expert].bytes; });
  CHECK(places && places->sharing == 1, "experts' biases do not follow one another");
  return {at(biases.front()), places->stride / sizeof(float)};
}

}  // namespace lockstep
