#include "tests/engine/runtime/random_family.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <iterator>
#include <random>
#include <span>
#include <vector>

#include "engine/base/check.h"
#include "tests/engine/kernels/random_weights.h"
#include "tests/engine/model/gguf_writer.h"

namespace lockstep {
namespace {

constexpr size_t kColumns = 128;
constexpr size_t kHeads = 6;
constexpr size_t kFeedForward = 128;
constexpr size_t kVocabulary = 150;
constexpr uint32_t kTrainedContext = 256;
constexpr uint32_t kOriginalContext = 64;  // of scaled positions
// Latent attention: the latents' columns, and a head's dimensions.
constexpr uint32_t kLatent = 64;
constexpr uint32_t kQueryLatent = 96;
constexpr uint32_t kOwnDimension = 32;
constexpr uint32_t kLatentValueDimension = 64;

using Bytes = std::vector<std::byte>;

class FamilyWriter {
 public:
  FamilyWriter(const FamilyFile& file, uint64_t seed)
      : file_(file), random_(seed), scales_(~seed) {}

  void write(const std::filesystem::path& path) {
    add_keys();
    add_rope();
    writer_.add_tensor("token_embd.weight", file_.format, {kColumns, kVocabulary},
                       matrix(kVocabulary, kColumns));
    for (size_t layer = 0; layer < file_.layers; ++layer) {
      add_attention(fmt::format("blk.{}.", layer));
      add_feed_forward(fmt::format("blk.{}.", layer), layer);
    }
    add_norm("output_norm.weight", kColumns);
    writer_.add_tensor("output.weight", file_.format, {kColumns, kVocabulary},
                       matrix(kVocabulary, kColumns));
    add_scales("output");
    writer_.write(path);
  }

 private:
  struct Part {
    std::string name;
    size_t rows = 0;
  };

  std::vector<float> normal(size_t count, double deviation, double mean = 0) {
    std::normal_distribution<double> values(mean, deviation);
    std::vector<float> result(count);
    for (float& value : result) value = static_cast<float>(values(random_));
    return result;
  }

  // Outputs are about as large as inputs.
  Bytes matrix(size_t rows, size_t columns) {
    const double deviation = 1 / std::sqrt(static_cast<double>(columns));
    if (file_.format == Format::kQ8_0) {
      Bytes bytes = random_rows(file_.format, rows, columns, random_);
      set_halves(file_.format, static_cast<float>(deviation / 73), bytes);  // of even int8: 73
      return bytes;
    }
    const std::vector<float> values = normal(rows * columns, deviation);
    const auto bytes = std::as_bytes(std::span(values));
    return {bytes.begin(), bytes.end()};
  }

  void add_vector(const std::string& name, const std::vector<float>& values) {
    writer_.add_tensor(name, {values.size()}, values);
  }
  void add_bias(const std::string& name, const std::vector<float>& values) {
    if (file_.bias_format == Format::kF32) return add_vector(name, values);
    writer_.add_tensor(name, file_.bias_format, {values.size()},
                       random_rows(file_.bias_format, 1, values.size(), random_));
  }
  void add_norm(const std::string& name, size_t count) { add_vector(name, normal(count, 0.2, 1)); }

  // Far from 1, some of them negative.
  void add_scales(const std::string& name, size_t count = 1) {
    if (!file_.scales) return;
    std::vector<float> scales(count);
    for (float& scale : scales) {
      scale = std::array{0.4F, 0.7F, -0.6F, 1.4F, 1.8F, -1.3F}[scales_() % 6];
    }
    add_vector(name + ".scale", scales);
  }

  template <typename T>
  void add_key(const std::string& name, T value) {
    writer_.add(file_.architecture + "." + name, value);
  }

  uint32_t value_dimension() const {
    return file_.value_dimension == 0 ? file_.head_dimension : file_.value_dimension;
  }

  void add_keys() {
    writer_.add("general.architecture", file_.architecture);
    add_key("block_count", file_.layers);
    add_key("context_length", kTrainedContext);
    add_key("embedding_length", uint32_t{kColumns});
    add_key("feed_forward_length", uint32_t{kFeedForward});
    add_key("attention.head_count", uint32_t{kHeads});
    if (file_.latents) {
      add_latent_keys();
    } else {
      add_key("attention.head_count_kv", file_.kv_heads);
      add_key("attention.key_length", file_.head_dimension);
      add_key("attention.value_length", value_dimension());
    }
    add_key("attention.layer_norm_rms_epsilon", 1e-5F);
    if (file_.experts == 0) return;
    add_key("expert_count", file_.experts);
    add_key("expert_used_count", file_.experts);
    add_key("expert_feed_forward_length", uint32_t{kFeedForward});
    if (file_.dense_layers > 0) add_key("leading_dense_block_count", file_.dense_layers);
    if (file_.shared_experts > 0) add_key("expert_shared_count", file_.shared_experts);
    if (file_.gating > 0) add_key("expert_gating_func", file_.gating);
  }

  void add_latent_keys() {
    const uint32_t key = kOwnDimension + file_.rotary_dimensions;
    const bool expanded = file_.expanded_latents;
    add_key("attention.head_count_kv", expanded ? uint32_t{kHeads} : 1U);
    add_key("attention.kv_lora_rank", kLatent);
    add_key("attention.q_lora_rank", kQueryLatent);
    add_key("attention.key_length", expanded ? key : kLatent + file_.rotary_dimensions);
    add_key("attention.value_length", expanded ? kLatentValueDimension : kLatent);
    if (expanded) return;
    add_key("attention.key_length_mla", key);
    add_key("attention.value_length_mla", kLatentValueDimension);
  }

  void add_rope() {
    add_key("rope.dimension_count", file_.rotary_dimensions);
    if (file_.scaling == RopeScaling::kUnscaled) return;
    add_key("rope.scaling.original_context_length", kOriginalContext);
    if (file_.scaling == RopeScaling::kYarn) {
      add_key("rope.scaling.type", std::string("yarn"));
      add_key("rope.scaling.factor", 4.0F);
      return;
    }
    for (const auto& [name, first] :
         {std::pair("rope_factors_short.weight", 1.0F), {"rope_factors_long.weight", 3.0F}}) {
      std::vector<float> factors(file_.rotary_dimensions / 2);
      for (size_t i = 0; i < factors.size(); ++i) factors[i] = first + 0.5F * static_cast<float>(i);
      add_vector(name, factors);
    }
  }

  // Matrices over one input, each in a tensor of its own or all in `fused`.
  void add_products(const std::string& block, const std::vector<Part>& parts,
                    const std::string& fused, size_t columns, bool biases) {
    Bytes all;
    std::vector<float> all_biases;
    for (const Part& part : parts) {
      const Bytes bytes = matrix(part.rows, columns);
      const std::vector<float> bias = biases ? normal(part.rows, 0.5) : std::vector<float>();
      all.insert(all.end(), bytes.begin(), bytes.end());
      all_biases.insert(all_biases.end(), bias.begin(), bias.end());
      if (file_.fused) continue;
      writer_.add_tensor(block + part.name + ".weight", file_.format, {columns, part.rows}, bytes);
      if (biases) add_bias(block + part.name + ".bias", bias);
      add_scales(block + part.name);
    }
    if (!file_.fused) return;
    const size_t rows = all.size() / row_bytes(file_.format, columns);
    writer_.add_tensor(block + fused + ".weight", file_.format, {columns, rows}, all);
    if (biases) add_bias(block + fused + ".bias", all_biases);
    add_scales(block + fused);
  }

  void add_product(const std::string& name, size_t rows, size_t columns, bool has_bias) {
    writer_.add_tensor(name + ".weight", file_.format, {columns, rows}, matrix(rows, columns));
    if (has_bias) add_bias(name + ".bias", normal(rows, 0.5));
    add_scales(name);
  }

  void add_matrices_of_heads(const std::string& name, size_t rows, size_t columns) {
    writer_.add_tensor(name, file_.format, {columns, rows, kHeads}, matrix(kHeads * rows, columns));
  }

  void add_latent_attention(const std::string& block) {
    const size_t rope = file_.rotary_dimensions;
    add_norm(block + "attn_norm.weight", kColumns);
    add_product(block + "attn_q_a", kQueryLatent, kColumns, false);
    add_norm(block + "attn_q_a_norm.weight", kQueryLatent);
    add_product(block + "attn_q_b", kHeads * (kOwnDimension + rope), kQueryLatent, false);
    add_product(block + "attn_kv_a_mqa", kLatent + rope, kColumns, false);
    add_norm(block + "attn_kv_a_norm.weight", kLatent);
    if (file_.expanded_latents) {
      add_product(block + "attn_kv_b", kHeads * (kOwnDimension + kLatentValueDimension), kLatent,
                  false);
    } else {
      add_matrices_of_heads(block + "attn_k_b.weight", kLatent, kOwnDimension);
      add_matrices_of_heads(block + "attn_v_b.weight", kLatentValueDimension, kLatent);
    }
    add_product(block + "attn_output", kColumns, kHeads * kLatentValueDimension, false);
  }

  void add_attention(const std::string& block) {
    if (file_.latents) return add_latent_attention(block);
    const size_t queries = kHeads * file_.head_dimension;
    const size_t keys = file_.kv_heads * file_.head_dimension;
    const size_t values = file_.kv_heads * value_dimension();
    add_norm(block + "attn_norm.weight", kColumns);
    add_products(block, {{"attn_q", queries}, {"attn_k", keys}, {"attn_v", values}}, "attn_qkv",
                 kColumns, file_.attention_biases);
    add_product(block + "attn_output", kColumns, kHeads * value_dimension(), file_.output_bias);
    if (!file_.head_norms) return;
    add_norm(block + "attn_q_norm.weight", file_.head_dimension);
    add_norm(block + "attn_k_norm.weight", file_.head_dimension);
  }

  void add_feed_forward(const std::string& block, size_t layer) {
    add_norm(fmt::format("{}{}.weight", block, file_.feed_forward_norm), kColumns);
    if (file_.experts > 0 && layer >= file_.dense_layers) return add_experts(block);
    add_products(block, {{"ffn_gate", kFeedForward}, {"ffn_up", kFeedForward}}, "ffn_up", kColumns,
                 file_.feed_forward_biases);
    add_product(block + "ffn_down", kColumns, kFeedForward, file_.feed_forward_biases);
  }

  void add_experts(const std::string& block) {
    const size_t count = file_.experts;
    const double deviation = 1 / std::sqrt(static_cast<double>(kColumns));
    writer_.add_tensor(block + "ffn_gate_inp.weight", {kColumns, count},
                       normal(count * kColumns, deviation));
    Bytes gates;
    Bytes ups;
    Bytes both;  // of each expert its gate, then its up
    for (size_t expert = 0; expert < count; ++expert) {
      for (Bytes* const own : {&gates, &ups}) {
        const Bytes bytes = matrix(kFeedForward, kColumns);
        own->insert(own->end(), bytes.begin(), bytes.end());
        both.insert(both.end(), bytes.begin(), bytes.end());
      }
    }
    const auto add = [&](const std::string& name, size_t rows, const Bytes& bytes) {
      writer_.add_tensor(block + name + ".weight", file_.format, {kColumns, rows, count}, bytes);
      add_scales(block + name, count);
    };
    add_scales(block + "ffn_gate_inp");
    add_scales(block + "ffn_down_exps", count);
    if (file_.fused) {
      add("ffn_gate_up_exps", 2 * kFeedForward, both);
    } else {
      add("ffn_gate_exps", kFeedForward, gates);
      add("ffn_up_exps", kFeedForward, ups);
    }
    writer_.add_tensor(block + "ffn_down_exps.weight", file_.format,
                       {kFeedForward, kColumns, count}, matrix(count * kColumns, kFeedForward));
    if (file_.selection_biases) add_vector(block + "exp_probs_b.bias", normal(count, 0.5));
    const size_t shared = file_.shared_experts * kFeedForward;
    if (shared == 0) return;
    add_product(block + "ffn_gate_shexp", shared, kColumns, false);
    add_product(block + "ffn_up_shexp", shared, kColumns, false);
    add_product(block + "ffn_down_shexp", kColumns, shared, false);
  }

  const FamilyFile& file_;
  RandomEngine random_;
  RandomEngine scales_;
  test::GgufWriter writer_;
};

constexpr std::string_view kFamilies[] = {
    "baichuan",  "deepseek2",      "ernie4_5", "exaone",  "internlm2", "llama", "maincoder",
    "paddleocr", "pangu-embedded", "phi3",     "qwen2",   "qwen2vl",   "qwen3", "qwen3moe",
    "qwen3vl",   "qwen3vlmoe",     "seed_oss", "smollm3", "xverse"};

}  // namespace

std::span<const std::string_view> random_families() {
  return kFamilies;
}

FamilyFile family_file(std::string_view architecture) {
  CHECK(std::ranges::find(kFamilies, architecture) != std::end(kFamilies),
        "what files of {} hold is not known", architecture);
  FamilyFile file{.architecture = std::string(architecture)};
  if (architecture == "baichuan") file.layers = 32;  // the only one that it may have
  if (architecture == "smollm3") file.layers = 5;    // of which the fourth has no positions
  if (architecture == "seed_oss") file.feed_forward_norm = "post_attention_norm";
  if (architecture == "phi3") {
    file.fused = true;
    file.scaling = RopeScaling::kLongrope;
  }
  for (const char* const name : {"qwen2", "qwen2vl", "seed_oss", "pangu-embedded"}) {
    if (architecture == name) file.attention_biases = true;
  }
  if (architecture == "pangu-embedded") file.output_bias = true;
  for (const char* const name : {"qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "maincoder"}) {
    if (architecture == name) file.head_norms = true;
  }
  if (architecture == "qwen3moe" || architecture == "qwen3vlmoe") file.experts = 3;
  if (architecture == "deepseek2") {
    file.experts = 3;
    file.dense_layers = 1;
    file.shared_experts = 1;
    file.gating = 2;
    file.selection_biases = true;
    file.latents = true;
  }
  return file;
}

RandomFamily::RandomFamily(const FamilyFile& file, uint64_t seed) {
  static std::atomic<uint32_t> count = 0;
  path_ = std::filesystem::temp_directory_path() /
          fmt::format("lockstep-family-{}-{}.gguf", getpid(), count.fetch_add(1));
  FamilyWriter(file, seed).write(path_);
}

RandomFamily::~RandomFamily() {
  std::filesystem::remove(path_);
}

}  // namespace lockstep
