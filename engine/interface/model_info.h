// A served model, for listings and logs.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

// The model file's own words, for listings and logs.
struct ModelInfo {
  std::string name;          // general.name, or the file's name without its ending
  std::string architecture;  // "llama"
  std::string format;        // the format most of its weights have: "Q4_0"
  uint64_t parameter_count = 0;
  uint64_t file_bytes = 0;
  int64_t file_seconds = 0;  // modification time, seconds since 1970
  uint32_t vocabulary_size = 0;
  uint32_t trained_context_tokens = 0;
  uint32_t context_tokens = 0;  // most tokens of one sequence as served
  std::string devices;          // that compute: "node0, node1", "gpu0 NVIDIA H200"
  std::string instruction_set;  // "avx512"; of a GPU "sm_90"
  std::string arithmetic;       // the profile: "exact", "fast"; "gpu": GPUs have their own
  std::string kv_format;        // "f16"; "q8_0/q4_h": of keys and of values
  uint32_t kv_page_tokens = 0;  // that a page of the KV cache holds
  uint32_t rank_count = 1;
  uint32_t worker_count = 0;          // of all ranks
  uint32_t batch_tokens = 0;          // of one pass at most
  std::string strategy;               // "gather"
  std::string fingerprint;            // changes when answers may change: version, profile, model
  uint32_t embedding_width = 0;       // numbers of an embedding
  std::string pooling;                // "mean" of all tokens, the "first" or the "last" one; empty:
  std::string embedding_refusal;      // no embeddings, because of this
  std::string generation_refusal;     // why it generates nothing; empty: it does
  std::string ranking_refusal;        // likewise of ranks
  bool computes_whole_texts = false;  // in one pass: no text is longer than one
};

}  // namespace lockstep
