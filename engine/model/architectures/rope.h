// The rotary positions of a family of models, from a file's keys <architecture>.rope.* and its
// tensors of factors: plain, linear, by a factor for each frequency (Llama 3.1), YaRN, LongRoPE.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "engine/graph/graph.h"
#include "engine/model/gguf_file.h"

namespace lockstep {

struct RopeShape {
  RotaryPairs pairs = RotaryPairs::kInterleaved;
  size_t head_dimension = 0;
  size_t trained_context = 0;
  size_t context_tokens = 0;  // of the longest sequence that is to be served
  // Beside rope.dimension_count, whose value stands for it where it is missing.
  std::string_view dimension_key = {};
  // The base's key, that whose value stands for it where it is missing, and the value without both.
  std::string_view base_key = "rope.freq_base";
  std::string_view fallback_key = {};
  double base = 10000;
  bool multiplies_scores = false;  // rope.scaling.yarn_log_multiplier
  bool rounds_ramp = true;         // YaRN's mixture begins and ends at whole dimensions
  bool is_scaled = true;           // as the keys rope.scaling.* and the tensors of factors say
};

struct Rope {
  Rotary rotary;
  double score_factor = 1;  // multiplies the attention's scores
};

// YaRN (Peng et al., arXiv 2309.00071): frequency i is divided by `factor` where it turns fewer
// than beta_slow times within the original context, kept where it turns more than beta_fast times,
// and between both mixed; cosines and sines are multiplied by 1 + 0.1 ln(factor), or by
// rope.scaling.yarn_attn_factor, and by rope.scaling.attn_factor. With
// rope.scaling.yarn_log_multiplier m they are divided by 1 + 0.1 m ln(factor). In DeepSeek's files,
// whose m is a tenth of that, scores are multiplied instead, by the square of 1 + m ln(factor), and
// cosines and sines by 1.
//
// LongRoPE (Ding et al., arXiv 2402.13753): frequency i is divided by factor i of
// rope_factors_long.weight where sequences may get longer than the original context, and else of
// rope_factors_short.weight. Which of the two never depends on the sequence: keys that are in the
// cache stay as they are when it grows. Cosines and sines are multiplied by
// rope.scaling.attn_factor, without it by sqrt(1 + ln(trained context / original) / ln(original)).
//
// Fails with kInvalidInput that names the key or the tensor and its value.
Result<Rope> read_rope(const GgufFile& file, const std::string& architecture,
                       const RopeShape& shape);

// Whether it is one of the tensors that read_rope() may read, and which need no place in the graph.
bool is_rope_tensor(std::string_view name);

}  // namespace lockstep
