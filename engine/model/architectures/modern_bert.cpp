// ModernBERT: an encoder of the usual decoder's layers, without biases. Of three layers the first
// sees all tokens and the others a window, with rotary positions of their own; embeddings are
// normed and go to the first layer's attention as they are. Source: arXiv 2412.13663.
#include "engine/base/ascii.h"
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {
namespace {

// The file format's pooling types.
constexpr uint64_t kMean = 1;
constexpr uint64_t kFirstToken = 2;

// Whether the head that ranks reads the mean of all tokens' states, or the first one's. The first
// files do not say it, and mean the mean.
Result<bool> head_reads_mean(const GgufFile& file) {
  const auto pooling = file.integer("modern-bert.classifier.pooling_type");
  if (!pooling) return std::unexpected(pooling.error());
  const uint64_t type = pooling->value_or(kMean);
  if (type == kMean || type == kFirstToken) return type == kMean;
  return invalid_input(
      "modern-bert.classifier.pooling_type is {}; known are 1 (the mean) and 2 (the first token)",
      type);
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
  const auto reads_mean = head_reads_mean(source.file);
  if (!reads_mean) return std::unexpected(reads_mean.error());
  traits.head_reads_mean = *reads_mean;
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
