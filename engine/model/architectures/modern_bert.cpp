// ModernBERT: an encoder of the usual decoder's layers, without biases. Of three layers the first
// sees all tokens and the others a window, with rotary positions of their own; embeddings are
// normed and go to the first layer's attention as they are. Source: arXiv 2412.13663.
#include "engine/base/ascii.h"
#include "engine/model/architectures/decoder.h"
#include "engine/model/architectures/ranking_head.h"
#include "engine/model/model.h"

namespace lockstep {
namespace {

constexpr uint64_t kFirstToken = 2;  // of the file format's pooling types

// A head that is no product gives other scores for the mean of all states than the mean of scores.
Result<void> check_head(const GgufFile& file) {
  const auto output = read_output(file, "modern-bert", ModelOutput::kStates);
  if (!output) return std::unexpected(output.error());
  const auto pooling = file.integer("modern-bert.classifier.pooling_type");
  if (!pooling) return std::unexpected(pooling.error());
  if (*output != ModelOutput::kScores || *pooling == kFirstToken) return {};
  return invalid_input(
      "modern-bert.classifier.pooling_type is {}; known is 2: a head that reads the first token's "
      "state",
      *pooling ? std::to_string(**pooling) : "missing, which is 1 (the mean)");
}

}  // namespace

Result<Model> build_modern_bert(const ModelSource& source) {
  DecoderTraits traits = {.rotary_pairs = RotaryPairs::kHalves,
                          .norm = NormKind::kLayer,
                          .has_embedding_norm = true,
                          .window = {.period = 3, .is_first_full = true},
                          .activation = ActivationFunction::kGelu,
                          .is_encoder = true,
                          .head_activation = ActivationFunction::kGelu};
  if (auto checked = check_head(source.file); !checked) return std::unexpected(checked.error());
  const auto activation = source.file.text("modern-bert.hidden_activation");
  if (!activation) return std::unexpected(activation.error());
  if (*activation == "silu") {
    traits.activation = ActivationFunction::kSilu;
  } else if (activation->value_or("gelu") != "gelu") {
    return invalid_input("modern-bert.hidden_activation is {}; known are gelu and silu",
                         in_quotes(**activation));
  }
  return build_decoder(source, traits);
}

}  // namespace lockstep
