#include "engine/model/architecture.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "engine/base/ascii.h"
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/model/architectures/model_keys.h"
#include "engine/model/architectures/rope.h"
#include "engine/model/model.h"

namespace lockstep {
namespace {

constexpr std::array kArchitectures = {
    Architecture{"apertus", build_apertus},
    Architecture{"arcee", build_arcee},
    Architecture{"arctic", build_arctic},
    Architecture{"baichuan", build_baichuan},
    Architecture{"bailingmoe", build_bailingmoe},
    Architecture{"bert", build_bert},
    Architecture{"cohere2", build_cohere2},
    Architecture{"command-r", build_command_r},
    Architecture{"deci", build_deci},
    Architecture{"deepseek", build_deepseek},
    Architecture{"deepseek2", build_deepseek2},
    Architecture{"deepseek32", build_deepseek32},
    Architecture{"dots1", build_dots1},
    Architecture{"ernie4_5", build_ernie4_5},
    Architecture{"ernie4_5-moe", build_ernie4_5_moe},
    Architecture{"exaone", build_exaone},
    Architecture{"exaone-moe", build_exaone_moe},
    Architecture{"exaone4", build_exaone4},
    Architecture{"falcon", build_falcon},
    Architecture{"falcon-h1", build_falcon_h1},
    Architecture{"gemma", build_gemma},
    Architecture{"gemma-embedding", build_gemma_embedding},
    Architecture{"gemma2", build_gemma2},
    Architecture{"gemma3", build_gemma3},
    Architecture{"gemma4", build_gemma4},
    Architecture{"glm-dsa", build_glm_dsa},
    Architecture{"glm4", build_glm4},
    Architecture{"glm4moe", build_glm4moe},
    Architecture{"gpt-oss", build_gpt_oss},
    Architecture{"granite", build_granite},
    Architecture{"granitehybrid", build_granitehybrid},
    Architecture{"granitemoe", build_granitemoe},
    Architecture{"grovemoe", build_grovemoe},
    Architecture{"hunyuan-dense", build_hunyuan_dense},
    Architecture{"hunyuan-moe", build_hunyuan_moe},
    Architecture{"internlm2", build_internlm2},
    Architecture{"jais2", build_jais2},
    Architecture{"jamba", build_jamba},
    Architecture{"jina-bert-v2", build_jina_bert_v2},
    Architecture{"jina-bert-v3", build_jina_bert_v3},
    Architecture{"kimi-linear", build_kimi_linear},
    Architecture{"lfm2", build_lfm2},
    Architecture{"lfm2moe", build_lfm2moe},
    Architecture{"llama", build_llama},
    Architecture{"llama4", build_llama4},
    Architecture{"maincoder", build_maincoder},
    Architecture{"mamba", build_mamba},
    Architecture{"mamba2", build_mamba2},
    Architecture{"mimo2", build_mimo2},
    Architecture{"minicpm", build_minicpm},
    Architecture{"minicpm3", build_minicpm3},
    Architecture{"minimax-m2", build_minimax_m2},
    Architecture{"mistral3", build_mistral3},
    Architecture{"mistral4", build_mistral4},
    Architecture{"modern-bert", build_modern_bert},
    Architecture{"nemotron", build_nemotron},
    Architecture{"nemotron_h", build_nemotron_h},
    Architecture{"nemotron_h_moe", build_nemotron_h_moe},
    Architecture{"olmo", build_olmo},
    Architecture{"nomic-bert", build_nomic_bert},
    Architecture{"nomic-bert-moe", build_nomic_bert_moe},
    Architecture{"olmo2", build_olmo2},
    Architecture{"olmoe", build_olmoe},
    Architecture{"openelm", build_openelm},
    Architecture{"orion", build_orion},
    Architecture{"paddleocr", build_paddleocr},
    Architecture{"pangu-embedded", build_pangu_embedded},
    Architecture{"phi2", build_phi2},
    Architecture{"phi3", build_phi3},
    Architecture{"plamo", build_plamo},
    Architecture{"plamo2", build_plamo2},
    Architecture{"qwen2", build_qwen2},
    Architecture{"qwen2moe", build_qwen2moe},
    Architecture{"qwen2vl", build_qwen2vl},
    Architecture{"qwen3", build_qwen3},
    Architecture{"qwen35", build_qwen35},
    Architecture{"qwen35moe", build_qwen35moe},
    Architecture{"qwen3moe", build_qwen3moe},
    Architecture{"qwen3next", build_qwen3next},
    Architecture{"qwen3vl", build_qwen3vl},
    Architecture{"qwen3vlmoe", build_qwen3vlmoe},
    Architecture{"refact", build_refact},
    Architecture{"seed_oss", build_seed_oss},
    Architecture{"smallthinker", build_smallthinker},
    Architecture{"smollm3", build_smollm3},
    Architecture{"stablelm", build_stablelm},
    Architecture{"starcoder2", build_starcoder2},
    Architecture{"xverse", build_xverse},
};

constexpr std::string_view kAssistantName = "gemma4-assistant";

// Those of files that draft for another model.
constexpr std::array kDraftingArchitectures = {
    Architecture{"eagle3", build_eagle3},
    Architecture{kAssistantName, build_gemma4_assistant},
};

// Parts of a file that a text model does without, by how their tensors' names begin or end.
struct UnusedPart {
  std::string_view prefix;
  std::string_view suffix;
  std::string_view part;
};

constexpr std::string_view kHeadPrefix = "cls.";

constexpr UnusedPart kUnusedParts[] = {
    {"v.", "", "the encoder of images"},
    {"mm.", "", "the projector of images or sound"},
    {"a.", "", "the encoder of sound"},
    {"", ".input_scale", "scales of products' inputs, for arithmetic that is not used"},
    {"blk.", ".attn_rot_embd.weight", "rotary frequencies, which are computed"},
    {kHeadPrefix, "", "the head that ranks, which pooling_type leaves out"},
};

// The block of "blk.N.<...>".
std::optional<size_t> block_of(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  size_t block = 0;
  const auto [end, error] =
      std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), block);
  if (error != std::errc() || end == name.data() + name.size() || *end != '.') return std::nullopt;
  return block;
}

// The part of the model that a tensor which the graph does not use belongs to, if the model can be
// run without it.
std::optional<std::string> unused_part(std::string_view name, const Model& model, size_t blocks) {
  const auto block = block_of(name);
  if (block && *block >= model.layer_count && *block < blocks) {
    return fmt::format("block {}, which predicts further tokens (MTP)", *block);
  }
  const auto unused_here = model.unused_tensors.find(std::string(name));
  if (unused_here != model.unused_tensors.end()) return unused_here->second;
  for (const UnusedPart& unused : kUnusedParts) {
    // Nothing may be left out of a head that is used.
    if (unused.prefix == kHeadPrefix && model.output == ModelOutput::kScores) continue;
    if (name.starts_with(unused.prefix) && name.ends_with(unused.suffix)) {
      return std::string(unused.part);
    }
  }
  return std::nullopt;
}

// The names that models compute with begin so, outside of blocks (gguf-py, gguf/constants.py,
// TENSOR_NAMES).
constexpr std::string_view kComputedPrefixes[] = {
    "altup_", "cls",    "conv",       "dec.", "dense_", "enc.",   "hc_",   "mtp",
    "nextn",  "output", "per_layer_", "pos",  "rope_",  "token_", "xielu",
};

// Whether a model's answers may depend on a tensor that the graph does not use: one of a block, or
// of a name that some model computes with.
bool may_be_needed(std::string_view name) {
  return block_of(name).has_value() ||
         std::ranges::any_of(kComputedPrefixes,
                             [&](std::string_view prefix) { return name.starts_with(prefix); });
}

// The tensors that are neither in the graph nor read beside it, as factors of positions and scales
// of matrices are.
std::vector<const GgufTensor*> unused_tensors(const GgufFile& file, const Model& model) {
  std::set<std::string_view> used;
  for (const Weight& weight : model.graph.weights()) used.insert(weight.name);
  std::vector<const GgufTensor*> unused;
  for (const GgufTensor& tensor : file.tensors()) {
    if (used.contains(tensor.name) || is_rope_tensor(tensor.name)) continue;
    if (!model.scale_tensors.contains(tensor.name)) unused.push_back(&tensor);
  }
  return unused;
}

// A tensor that the graph does not use, though answers may depend on it, shows that the file's
// model is not the one we would compute.
Result<void> find_left_out(const GgufFile& file, Model& model) {
  const auto blocks = file.integer(model.architecture + ".block_count");
  if (!blocks) return std::unexpected(blocks.error());
  for (const auto& [name, tensor] : file.integer_tensors()) {
    return invalid_input(
        "tensor {} holds whole numbers, and has no place in this architecture as it is known here",
        in_quotes(name));
  }
  std::map<std::string, LeftOutTensors> by_part;
  for (const GgufTensor* const tensor : unused_tensors(file, model)) {
    auto part = unused_part(tensor->name, model, blocks->value_or(0));
    if (!part && !may_be_needed(tensor->name)) part = "names that no model computes with";
    if (!part) {
      return invalid_input(
          "tensor {} has no place in this architecture as it is known here: the file needs a newer "
          "version, or is not what general.architecture says",
          in_quotes(tensor->name));
    }
    LeftOutTensors& left_out = by_part[*part];
    left_out.part = *part;
    ++left_out.tensors;
    left_out.bytes += tensor->size_bytes;
  }
  for (auto& [part, left_out] : by_part) {
    spdlog::info("{}: {} tensors of {} are not loaded: {} bytes", file.parts().front().string(),
                 left_out.tensors, part, left_out.bytes);
    model.left_out.push_back(std::move(left_out));
  }
  return {};
}

// The least number of letters to insert, drop or replace that make one word of the other.
size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < from.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < to.size(); ++j) {
      const size_t replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

Error unknown_architecture(std::string_view name) {
  std::vector<std::string_view> known;
  for (const Architecture& architecture : kArchitectures) known.push_back(architecture.name);
  std::vector<std::string_view> nearest = known;
  std::ranges::partial_sort(nearest, nearest.begin() + 3, {}, [name](std::string_view each) {
    return std::pair(edit_distance(name, each), each);
  });
  nearest.resize(3);
  return invalid_input("architecture {} is not known here; nearest are {}; known are: {}",
                       in_quotes(name), fmt::join(nearest, ", "), fmt::join(known, ", "))
      .error();
}

// Adapters and projectors name the architecture that they go with.
Result<void> check_is_model(const GgufFile& file) {
  const auto type = file.text("general.type");
  if (!type) return std::unexpected(type.error());
  if (!type->has_value() || **type == "model") return {};
  return invalid_input(
      "general.type is {}: the file is no model by itself{}; give the model's own file",
      in_quotes(**type),
      **type == "adapter" ? ", but an adapter (LoRA), which must be merged into its model first"
                          : "");
}

Result<Model> build_source(const ModelSource& source) {
  const GgufFile& file = source.file;
  if (auto is_model = check_is_model(file); !is_model) return std::unexpected(is_model.error());
  const auto name = file.text("general.architecture");
  if (!name) return std::unexpected(name.error());
  if (!name->has_value()) {
    return invalid_input("general.architecture is missing: the file does not say what it holds");
  }
  const auto row = std::ranges::find(kArchitectures, **name, &Architecture::name);
  if (row != kArchitectures.end()) return row->build(source);
  if (drafts_for_another(file)) {
    return invalid_input(
        "a file of architecture {} drafts for another model: use --model for the other's file, and "
        "--draft-model for this one",
        **name);
  }
  return std::unexpected(unknown_architecture(**name));
}

// As find_left_out(), of the tensors of one block.
Result<void> check_block(const GgufFile& file, const Model& model, size_t block) {
  for (const GgufTensor* const tensor : unused_tensors(file, model)) {
    if (block_of(tensor->name) != block) continue;
    if (unused_part(tensor->name, model, /*blocks=*/0)) continue;
    return invalid_input(
        "tensor {} has no place in a block that predicts further tokens as it is known here",
        in_quotes(tensor->name));
  }
  return {};
}

// The layers of the file's model, behind which blocks that predict further tokens stand.
Result<size_t> layers_before_blocks(const GgufFile& file) {
  const auto architecture = file.text("general.architecture");
  if (!architecture) return std::unexpected(architecture.error());
  return read_layer_count(file, architecture->value_or(""));
}

// The row of its architecture; null: it drafts for no other model.
const Architecture* drafting_row(const GgufFile& file) {
  const auto name = file.text("general.architecture");
  if (!name || !name->has_value()) return nullptr;
  const auto row = std::ranges::find(kDraftingArchitectures, **name, &Architecture::name);
  return row == kDraftingArchitectures.end() ? nullptr : &*row;
}

// A tensor that the graph does not use shows that another model was meant.
Result<void> check_all_used(const GgufFile& file, const Model& model) {
  std::vector<const GgufTensor*> unused = unused_tensors(file, model);
  std::erase_if(unused, [&](const GgufTensor* tensor) {
    return model.unused_tensors.contains(tensor->name);
  });
  if (unused.empty()) return {};
  return invalid_input("tensor {} has no place in architecture {} as it is known here",
                       in_quotes(unused.front()->name), model.architecture);
}

bool has_tensor(const GgufFile& file, const char* name) {
  return file.find_tensor(name) != nullptr || file.integer_tensors().contains(name);
}

// To a file that has a table of its own.
Result<void> lend_table(const GgufFile& model, GgufFile& draft) {
  constexpr const char* kTable = "token_embd.weight";
  if (has_tensor(draft, kModelTable)) {
    return invalid_input("tensor {} has no place in architecture {}", kModelTable, kAssistantName);
  }
  if (model.find_tensor(kTable) == nullptr) {
    return invalid_input("the model has no tensor {}, which the draft model reads", kTable);
  }
  return draft.borrow(model, kTable, kModelTable);
}

std::string joining_tensor(size_t block) {
  return fmt::format("blk.{}.nextn.eh_proj.weight", block);
}

}  // namespace

std::span<const Architecture> all_architectures() {
  return kArchitectures;
}

std::span<const Architecture> drafting_architectures() {
  return kDraftingArchitectures;
}

bool drafts_for_another(const GgufFile& file) {
  return drafting_row(file) != nullptr;
}

Result<void> borrow_shared_tensors(const GgufFile& model, GgufFile& draft) {
  constexpr const char* kTable = "token_embd.weight";
  constexpr const char* kOutput = "output.weight";
  constexpr const char* kOutputScale = "output.scale";
  if (drafting_row(draft)->name == kAssistantName) return lend_table(model, draft);
  const auto lend = [&](const char* tensor, const char* name) -> Result<void> {
    const bool is_free = model.find_tensor(tensor) != nullptr && !has_tensor(draft, name);
    return is_free ? draft.borrow(model, tensor, name) : Result<void>();
  };
  const bool has_table = draft.find_tensor(kTable) != nullptr;
  const bool has_output = draft.find_tensor(kOutput) != nullptr;
  const bool is_tied = model.find_tensor(kOutput) == nullptr;
  Result<void> lent = lend(kTable, kTable);
  if (lent && !has_output && !is_tied) lent = lend(kOutput, kOutput);
  if (lent && !has_output && !is_tied) lent = lend(kOutputScale, kOutputScale);
  if (lent && !has_output && is_tied && has_table) lent = lend(kTable, kOutput);
  return lent;
}

Result<Model> build_drafting_model(const ModelSource& source) {
  const Architecture* const row = drafting_row(source.file);
  CHECK(row != nullptr, "{} drafts for no other model", source.file.parts().front().string());
  auto model = row->build(source);
  if (!model) return model;
  if (auto used = check_all_used(source.file, *model); !used) return std::unexpected(used.error());
  return model;
}

Result<Model> build_model(const ModelSource& source) {
  auto model = build_source(source);
  if (!model) return model;
  if (auto found = find_left_out(source.file, *model); !found) {
    return std::unexpected(found.error());
  }
  return model;
}

Result<size_t> count_predicting_blocks(const GgufFile& file) {
  const auto layers = layers_before_blocks(file);
  if (!layers) return std::unexpected(layers.error());
  size_t count = 0;
  while (file.find_tensor(joining_tensor(*layers + count)) != nullptr) ++count;
  return count;
}

Result<Model> build_predicting_block(const ModelSource& source, size_t block) {
  const auto count = count_predicting_blocks(source.file);
  if (!count) return std::unexpected(count.error());
  if (block >= *count) {
    return invalid_input(
        "block {} of those that predict further tokens is not there: the file has "
        "{} (tensors blk.N.nextn.*)",
        block, *count);
  }
  auto model = build_source({source.file, source.context_tokens, block});
  if (!model) return model;
  if (model->graph.given_columns() == 0) {
    return invalid_input("blocks that predict further tokens are not known of architecture {}",
                         model->architecture);
  }
  const size_t layers = *layers_before_blocks(source.file);
  if (auto checked = check_block(source.file, *model, layers + block); !checked) {
    return std::unexpected(checked.error());
  }
  return model;
}

}  // namespace lockstep
