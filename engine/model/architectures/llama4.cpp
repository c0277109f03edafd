// Llama 4: of four layers three see sections of keys, with rotary positions and behind them norms
// without weights; the fourth sees all keys, with temperatures of queries instead. Mixtures whose
// weights multiply what experts read, beside a shared expert.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

// Files say with a window of 0 that no layer has sections. The larger model, which is known by its
// experts, has no norms of heads.
Result<Model> build_llama4(const ModelSource& source) {
  constexpr uint64_t kExpertsWithoutNorms = 128;
  const auto window = source.file.integer("llama4.attention.sliding_window");
  if (!window) return std::unexpected(window.error());
  const auto experts = source.file.integer("llama4.expert_count");
  if (!experts) return std::unexpected(experts.error());
  DecoderTraits traits = {
      .temperature = TemperatureTraits{.usual = {.scale = 0.1F, .tokens = 8192, .offset = 1},
                                       .is_unrotated = true},
      .experts = Presence::kRequired,
      .mixture = {.gating = GatingFunction::kSigmoid,
                  .is_normalized = false,
                  .weighs_inputs = true,
                  .shared_experts = 1}};
  if (window->value_or(1) != 0) {
    traits.window = {
        .period = 4, .tokens = 8192, .rotates_alone = true, .kind = WindowKind::kSection};
  }
  if (experts->value_or(0) != kExpertsWithoutNorms) {
    traits.head_norms = {.are_last = true, .weights = HeadNormWeights::kUnweighted};
  }
  return build_decoder(source, traits);
}

}  // namespace lockstep
