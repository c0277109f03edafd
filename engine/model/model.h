// A model as a file's architecture makes it, what it is made from, and the functions that make it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/base/token_id.h"
#include "engine/graph/graph.h"
#include "engine/model/gguf_file.h"

namespace lockstep {

struct ModelSource {
  const GgufFile& file;
  size_t context_tokens = 0;  // of the longest sequence as it was asked for; 0: as trained
  // The number of one of the blocks behind the layers that predict further tokens: it alone is
  // built, as a model of its own (build_predicting_block()). None: the model itself.
  std::optional<size_t> predicting_block = std::nullopt;
};

// Tensors of the file that are not loaded, as their part of the model is not run.
struct LeftOutTensors {
  std::string part;  // "blocks 2 to 3, which predict further tokens"
  size_t tensors = 0;
  uint64_t bytes = 0;
};

// The kinds of values that a graph gives as its logits.
enum class ModelOutput : uint8_t {
  kLogits,  // of the vocabulary's words: the model generates
  kStates,  // tokens' hidden states: it embeds
  kScores,  // of a head's classes: it ranks
};

// A layer of another model whose keys and values are given, as its attention stores them or an
// earlier layer has stored them for it.
struct GivenKeys {
  size_t from_end = 1;  // 1: the other's last layer
  size_t kv_heads = 0;
  size_t head_dimension = 0;  // of keys and of values
  size_t window = 0;          // most keys that a token of the layer sees; 0: all

  size_t columns() const { return 2 * kv_heads * head_dimension; }
};

// The rows that a model which drafts for another one is given with tokens.
struct GivenRows {
  // The other model's: what these layers of it read, one behind the other (Model::layer_inputs);
  // none: its hidden row.
  std::vector<size_t> layers = {};
  HiddenForm form = HiddenForm::kNormed;  // of the other's hidden row, and of its own
  // Behind these the keys and values of some of its layers: of each all keys, then all values.
  // With them rows are given one place earlier: token p reads the row of token p - 1 at the place
  // of that one, and so does each token that is drafted behind it, at the same place.
  std::vector<GivenKeys> keys = {};
  // The column from which on its own row is given, where it goes on from what it has drafted. The
  // columns of the other's layers or hidden row are zeros then; keys and values stay.
  size_t own_begin = 0;

  size_t key_columns() const;
  // The model is a block of the other's own file: it reads nothing but hidden rows.
  bool is_of_own_block() const { return layers.empty() && keys.empty(); }
};

// The name under which a file that drafts for another model borrows the other's table of
// embeddings, beside one of its own (borrow_shared_tensors()).
inline constexpr const char* kModelTable = "model.token_embd.weight";

struct Model {
  Graph graph;
  ModelOutput output = ModelOutput::kLogits;
  // By layer the residual that it reads, and behind the last layer the one that it leaves; empty of
  // models that have no such layers.
  std::vector<ValueId> layer_inputs = {};
  GivenRows given = {};
  // By row of logits the token that it stands for; empty: all tokens stand in their order.
  std::vector<TokenId> logit_tokens = {};
  std::string architecture;  // general.architecture
  size_t trained_context_tokens = 0;
  bool has_longer_contexts = true;  // than it was trained for; false: positions are looked up
  size_t vocabulary_size = 0;
  size_t layer_count = 0;
  std::set<std::string> scale_tensors = {};  // whose values the graph has as Weight::scale or so
  // By name the part of the model that they belong to, which it does without.
  std::map<std::string, std::string> unused_tensors = {};
  std::vector<LeftOutTensors> left_out = {};
};

// The entry points of the architectures' files, for the table in architecture.cpp.
Result<Model> build_apertus(const ModelSource& source);
Result<Model> build_arcee(const ModelSource& source);
Result<Model> build_arctic(const ModelSource& source);
Result<Model> build_baichuan(const ModelSource& source);
Result<Model> build_bailingmoe(const ModelSource& source);
Result<Model> build_bert(const ModelSource& source);
Result<Model> build_cohere2(const ModelSource& source);
Result<Model> build_command_r(const ModelSource& source);
Result<Model> build_deci(const ModelSource& source);
Result<Model> build_deepseek(const ModelSource& source);
Result<Model> build_deepseek2(const ModelSource& source);
Result<Model> build_deepseek32(const ModelSource& source);
Result<Model> build_dots1(const ModelSource& source);
Result<Model> build_eagle3(const ModelSource& source);
Result<Model> build_ernie4_5(const ModelSource& source);
Result<Model> build_ernie4_5_moe(const ModelSource& source);
Result<Model> build_exaone(const ModelSource& source);
Result<Model> build_exaone4(const ModelSource& source);
Result<Model> build_exaone_moe(const ModelSource& source);
Result<Model> build_falcon(const ModelSource& source);
Result<Model> build_falcon_h1(const ModelSource& source);
Result<Model> build_gemma(const ModelSource& source);
Result<Model> build_gemma2(const ModelSource& source);
Result<Model> build_gemma3(const ModelSource& source);
Result<Model> build_gemma4(const ModelSource& source);
Result<Model> build_gemma4_assistant(const ModelSource& source);
Result<Model> build_gemma_embedding(const ModelSource& source);
Result<Model> build_glm4(const ModelSource& source);
Result<Model> build_glm4moe(const ModelSource& source);
Result<Model> build_glm_dsa(const ModelSource& source);
Result<Model> build_gpt_oss(const ModelSource& source);
Result<Model> build_granite(const ModelSource& source);
Result<Model> build_granitemoe(const ModelSource& source);
Result<Model> build_granitehybrid(const ModelSource& source);
Result<Model> build_grovemoe(const ModelSource& source);
Result<Model> build_hunyuan_dense(const ModelSource& source);
Result<Model> build_hunyuan_moe(const ModelSource& source);
Result<Model> build_internlm2(const ModelSource& source);
Result<Model> build_jais2(const ModelSource& source);
Result<Model> build_jamba(const ModelSource& source);
Result<Model> build_jina_bert_v2(const ModelSource& source);
Result<Model> build_jina_bert_v3(const ModelSource& source);
Result<Model> build_kimi_linear(const ModelSource& source);
Result<Model> build_lfm2(const ModelSource& source);
Result<Model> build_lfm2moe(const ModelSource& source);
Result<Model> build_llama(const ModelSource& source);
Result<Model> build_llama4(const ModelSource& source);
Result<Model> build_maincoder(const ModelSource& source);
Result<Model> build_mamba(const ModelSource& source);
Result<Model> build_mamba2(const ModelSource& source);
Result<Model> build_mimo2(const ModelSource& source);
Result<Model> build_minicpm(const ModelSource& source);
Result<Model> build_minicpm3(const ModelSource& source);
Result<Model> build_minimax_m2(const ModelSource& source);
Result<Model> build_mistral3(const ModelSource& source);
Result<Model> build_mistral4(const ModelSource& source);
Result<Model> build_modern_bert(const ModelSource& source);
Result<Model> build_nemotron(const ModelSource& source);
Result<Model> build_olmo(const ModelSource& source);
Result<Model> build_nemotron_h(const ModelSource& source);
Result<Model> build_nemotron_h_moe(const ModelSource& source);
Result<Model> build_nomic_bert(const ModelSource& source);
Result<Model> build_nomic_bert_moe(const ModelSource& source);
Result<Model> build_olmo2(const ModelSource& source);
Result<Model> build_olmoe(const ModelSource& source);
Result<Model> build_openelm(const ModelSource& source);
Result<Model> build_orion(const ModelSource& source);
Result<Model> build_paddleocr(const ModelSource& source);
Result<Model> build_pangu_embedded(const ModelSource& source);
Result<Model> build_phi2(const ModelSource& source);
Result<Model> build_phi3(const ModelSource& source);
Result<Model> build_plamo(const ModelSource& source);
Result<Model> build_plamo2(const ModelSource& source);
Result<Model> build_qwen2(const ModelSource& source);
Result<Model> build_qwen2moe(const ModelSource& source);
Result<Model> build_qwen2vl(const ModelSource& source);
Result<Model> build_qwen3(const ModelSource& source);
Result<Model> build_qwen35(const ModelSource& source);
Result<Model> build_qwen35moe(const ModelSource& source);
Result<Model> build_qwen3moe(const ModelSource& source);
Result<Model> build_qwen3next(const ModelSource& source);
Result<Model> build_qwen3vl(const ModelSource& source);
Result<Model> build_qwen3vlmoe(const ModelSource& source);
Result<Model> build_refact(const ModelSource& source);
Result<Model> build_seed_oss(const ModelSource& source);
Result<Model> build_smallthinker(const ModelSource& source);
Result<Model> build_smollm3(const ModelSource& source);
Result<Model> build_stablelm(const ModelSource& source);
Result<Model> build_starcoder2(const ModelSource& source);
Result<Model> build_xverse(const ModelSource& source);

}  // namespace lockstep
