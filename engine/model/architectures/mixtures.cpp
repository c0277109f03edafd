// Families of mixtures whose decoder is otherwise as others': what their files do not say of how
// experts are chosen and weighed.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_bailingmoe(const ModelSource& source) {
  return build_decoder(source,
                       {.experts = Presence::kRequired, .mixture = {.is_normalized = false}});
}

Result<Model> build_deepseek(const ModelSource& source) {
  return build_decoder(source,
                       {.experts = Presence::kRequired, .mixture = {.is_normalized = false}});
}

Result<Model> build_dots1(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .head_norms = {.presence = Presence::kRequired},
                                .experts = Presence::kRequired,
                                .mixture = {.is_normalized = false}});
}

Result<Model> build_ernie4_5_moe(const ModelSource& source) {
  return build_decoder(source, {.experts = Presence::kRequired});
}

Result<Model> build_grovemoe(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .head_norms = {.presence = Presence::kRequired},
                                .experts = Presence::kRequired,
                                .mixture = {.has_adjugate = true}});
}

// Every norm of heads stands behind the rotary positions.
Result<Model> build_hunyuan_moe(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .head_norms = {.presence = Presence::kRequired, .are_last = true},
                                .experts = Presence::kRequired});
}

Result<Model> build_hunyuan_dense(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .head_norms = {.presence = Presence::kRequired, .are_last = true}});
}

Result<Model> build_minimax_m2(const ModelSource& source) {
  return build_decoder(
      source, {.rotary_pairs = RotaryPairs::kHalves,
               .head_norms = {.presence = Presence::kRequired, .weights = HeadNormWeights::kWhole},
               .experts = Presence::kRequired,
               .mixture = {.gating = GatingFunction::kSigmoid}});
}

// The first files of Qwen 1.5's mixture do not say how wide experts are.
Result<Model> build_qwen2moe(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .attention_biases = Presence::kRequired,
                                .experts = Presence::kRequired,
                                .mixture = {.is_normalized = false, .divides_width = true}});
}

// A layer's experts read what its attention does, beside a dense feed-forward behind attention.
Result<Model> build_arctic(const ModelSource& source) {
  return build_decoder(source, {.experts = Presence::kRequired,
                                .beside = BesideTraits{.reads_layer_input = true,
                                                       .is_square = true,
                                                       .before_experts = "ffn_norm_exps"}});
}

// MiMo V2 Flash: in layers with a window other KV heads and sinks; some layers without experts.
Result<Model> build_mimo2(const ModelSource& source) {
  const auto pattern = source.file.booleans("mimo2.attention.sliding_window_pattern");
  if (!pattern) return std::unexpected(pattern.error());
  if (!pattern->has_value()) {
    return invalid_input("mimo2.attention.sliding_window_pattern is missing");
  }
  return build_decoder(source,
                       {.rotary_pairs = RotaryPairs::kHalves,
                        .sinks = Presence::kOptional,
                        .window = {.period = 2, .presence = Presence::kRequired},
                        .has_value_scale = true,
                        .experts = Presence::kRequired,
                        .mixture = {.gating = GatingFunction::kSigmoid, .is_told_by_tensors = true},
                        .predicting = PredictingTraits{.given = HiddenForm::kResidual}});
}

// Experts are chosen by the layer's input, before attention.
Result<Model> build_smallthinker(const ModelSource& source) {
  return build_decoder(
      source,
      {.rotary_pairs = RotaryPairs::kHalves,
       .window = {.period = 4, .rotates_alone = true, .is_first_full = true},
       .experts = Presence::kRequired,
       .mixture = {.activation = ActivationFunction::kRelu, .router = RouterInput::kLayer}});
}

}  // namespace lockstep
