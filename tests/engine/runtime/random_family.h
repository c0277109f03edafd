// Small models with random weights of every architecture and in every form of tensors, written
// where a test can load them: wide enough that two and three ranks have a part of each matrix.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "engine/tensor/format.h"

namespace lockstep {

enum class RopeScaling : uint8_t { kUnscaled, kYarn, kLongrope };

// Which keys and tensors a file has.
struct FamilyFile {
  std::string architecture = "llama";
  std::string feed_forward_norm = "ffn_norm";
  Format format = Format::kF32;       // of all matrices: kF32 or kQ8_0
  Format bias_format = Format::kF32;  // or kQ8_0
  uint32_t layers = 2;
  uint32_t experts = 0;           // to all of which a token goes; 0: it is no mixture
  uint32_t dense_layers = 0;      // of a mixture: before those with experts
  uint32_t shared_experts = 0;    // of a mixture: to which every token goes
  uint32_t gating = 0;            // expert_gating_func; 0: the key is missing
  bool selection_biases = false;  // of a mixture
  uint32_t kv_heads = 3;
  uint32_t head_dimension = 16;
  uint32_t value_dimension = 0;  // 0: as of keys
  uint32_t rotary_dimensions = 16;
  RopeScaling scaling = RopeScaling::kUnscaled;
  bool attention_biases = false;  // of queries, keys and values
  bool output_bias = false;       // of attention
  bool feed_forward_biases = false;
  bool head_norms = false;
  bool latents = false;           // multi-head latent attention
  bool expanded_latents = false;  // attn_kv_b instead of attn_k_b and attn_v_b
  bool scales = false;            // of every matrix but the table, and of every expert
  // Queries, keys and values in one tensor, and gate and up in another, also of experts. The
  // weights are those of the file without.
  bool fused = false;
};

// The architectures whose usual files are known here: the first ones, of which each later one
// differs in nodes that random graphs have.
std::span<const std::string_view> random_families();
// The usual file of one of them.
FamilyFile family_file(std::string_view architecture);

// A model file that lasts as long as this object: 128 columns, six query heads, a
// feed-forward (or an expert) of 128, a vocabulary of 150.
class RandomFamily {
 public:
  RandomFamily(const FamilyFile& file, uint64_t seed);
  ~RandomFamily();
  RandomFamily(const RandomFamily&) = delete;
  RandomFamily& operator=(const RandomFamily&) = delete;

  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep
