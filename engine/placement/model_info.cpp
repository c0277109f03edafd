#include "engine/placement/model_info.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>

#include "engine/graph/fusion/groups.h"
#include "engine/kernels/attention.h"
#include "engine/placement/settings.h"
#include "engine/text/utf8.h"

namespace lockstep {
namespace {

// FNV-1a over what makes answers what they are.
class Fingerprint {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) {
      hash_ = (hash_ ^ static_cast<unsigned char>(byte)) * 0x100000001B3U;
    }
  }
  void add(uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash_ = (hash_ ^ ((number >> static_cast<unsigned>(shift)) & 0xFFU)) * 0x100000001B3U;
    }
  }
  uint32_t folded() const { return static_cast<uint32_t>(hash_ ^ (hash_ >> 32U)); }

 private:
  uint64_t hash_ = 0xCBF29CE484222325U;
};

// Valid UTF-8 without control characters, of a length that a log line and a metric's label can
// bear.
std::string fit_for_display(std::string text) {
  constexpr size_t kMostBytes = 128;
  if (text.size() > kMostBytes) {
    text.resize(complete_utf8_length(std::string_view(text).substr(0, kMostBytes)));
  }
  text = replace_invalid_utf8(text);
  std::erase_if(text, [](char character) {
    return static_cast<unsigned char>(character) < 0x20 || character == 0x7F;
  });
  return text;
}

std::string_view most_common_format(const GgufFile& file) {
  std::array<uint64_t, kFormatCount> bytes = {};
  for (const GgufTensor& tensor : file.tensors()) {
    bytes[static_cast<size_t>(tensor.format)] += tensor.size_bytes;
  }
  const auto most = std::ranges::max_element(bytes);
  return traits(static_cast<Format>(most - bytes.begin())).name;
}

// The columns of what the output matrix multiplies, or of what the model gives in its place.
size_t hidden_columns(const Model& model) {
  const Graph& graph = model.graph;
  if (model.output != ModelOutput::kLogits) return graph.columns(graph.logits());
  const auto product = logits_product(graph);
  return product ? graph.columns(graph.nodes()[*product].inputs.front()) : 0;
}

}  // namespace

ModelInfo describe_model(const GgufFile& file, const Model& model, const EngineOptions& options,
                         const ModelLayout& layout) {
  ModelInfo info;
  const auto name = file.text("general.name");
  info.name = fit_for_display(name ? name->value_or("") : "");
  if (info.name.empty()) info.name = fit_for_display(options.model.stem().string());
  info.architecture = model.architecture;
  info.format = most_common_format(file);
  info.file_bytes = file.size_bytes();
  info.vocabulary_size = static_cast<uint32_t>(model.vocabulary_size);
  info.trained_context_tokens = static_cast<uint32_t>(model.trained_context_tokens);
  info.embedding_width = static_cast<uint32_t>(hidden_columns(model));
  info.devices = layout.device_titles;
  info.instruction_set = layout.instruction_set;
  info.arithmetic = layout.arithmetic;
  info.kv_format = kv_format_name(options);
  info.kv_page_tokens = kPageTokens;
  info.batch_tokens = static_cast<uint32_t>(layout.plan_options.batch_tokens);
  Fingerprint fingerprint;
  fingerprint.add(info.kv_format);
  for (const FileReader& part : file.readers()) {
    info.file_seconds = std::max(info.file_seconds, part.changed_ns() / 1'000'000'000);
    fingerprint.add(part.size_bytes());
    fingerprint.add(static_cast<uint64_t>(part.changed_ns()));
  }
  std::set<Format> formats;
  for (const GgufTensor& tensor : file.tensors()) {
    formats.insert(tensor.format);
    info.parameter_count += tensor.rows() * tensor.columns();
    fingerprint.add(tensor.name);
    fingerprint.add(tensor.offset);
    fingerprint.add(static_cast<uint64_t>(tensor.format));
  }
  for (const Format format : formats) {  // in which arithmetic this machine multiplies them
    const ProductForms& form = layout.plan_options.forms[static_cast<size_t>(format)];
    fingerprint.add(static_cast<uint64_t>(form.prompted));
    fingerprint.add(static_cast<uint64_t>(form.generated));
  }
  if (layout.plan_options.prompt_attention == AttentionForm::kBf16)
    fingerprint.add("bf16 attention");
  for (const std::string& part : layout.rules().fingerprint_parts(
           layout.instruction_set, layout.places, layout.split.strategy)) {
    fingerprint.add(part);
  }
  // A sum whose parts ranks add has other bits if it is cut otherwise or its parts travel
  // otherwise. Whole results that are gathered have the same for any ranks.
  if (layout.places.size() > 1 && layout.split.strategy == Strategy::kReduce) {
    fingerprint.add(strategy_name(layout.split.strategy));
    fingerprint.add(options.exchange_format);
    double all_shares = 0;
    double all_expert_shares = 0;
    for (const RankPlace& place : layout.places) {
      all_shares += place.share;
      all_expert_shares += place.expert_share.value_or(0);
    }
    for (const RankPlace& place : layout.places) {
      fingerprint.add(std::to_string(place.share / all_shares));
      if (!place.expert_share) continue;
      fingerprint.add(std::to_string(*place.expert_share / all_expert_shares));
    }
    fingerprint.add(layout.gpu_expert_layers);
  }
  info.fingerprint =
      fmt::format("lockstep-{}-{}-{:08x}", LOCKSTEP_VERSION, info.arithmetic, fingerprint.folded());
  return info;
}

void describe_ranks(const ModelLayout& layout, ModelInfo& info) {
  info.context_tokens = static_cast<uint32_t>(layout.context_tokens);
  info.rank_count = static_cast<uint32_t>(layout.split.rank_count);
  for (const RankPlace& place : layout.hosts ? layout.places_of_hosts : layout.places) {
    info.worker_count += static_cast<uint32_t>(place.cpus.size());
  }
  info.strategy = strategy_name(layout.split.strategy);
}

bool has_segments(const Graph& graph) {
  return std::ranges::any_of(graph.nodes(), [&](const GraphNode& node) {
    return node.operation == Operation::kEmbed && node.index == EmbedIndex::kSegment &&
           graph.weights()[node.weight].rows > 1;
  });
}

RowUse describe_uses(const GgufFile& file, const Model& model, ModelInfo& info) {
  RowUse use{.output = model.output};
  info.computes_whole_texts = model.graph.sees_ahead();
  if (model.output != ModelOutput::kScores) {
    info.ranking_refusal = "it has no head that ranks (tensors cls.weight, cls.output.weight)";
  }
  if (model.output != ModelOutput::kLogits) {
    info.generation_refusal = model.output == ModelOutput::kScores
                                  ? "it ranks texts (POST /v1/rerank)"
                                  : "it embeds texts (POST /v1/embeddings)";
  }
  if (model.output == ModelOutput::kLogits && !hidden_residual(model.graph)) {
    info.embedding_refusal =
        "its last norm is no RMS norm with weights, and hidden states are given of these alone";
    return use;
  }
  const auto read = read_pooling(file, model);
  if (!read) {
    info.embedding_refusal = read.error().message;
    if (model.output == ModelOutput::kScores) info.ranking_refusal = read.error().message;
    return use;
  }
  use.pooling = *read;
  if (model.output == ModelOutput::kScores) {
    info.embedding_refusal = "it ranks texts (POST /v1/rerank)";
  } else {
    info.pooling = pooling_name(*read);
  }
  return use;
}

}  // namespace lockstep
