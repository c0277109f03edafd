// Small graphs made at random from the operations, with weights in a file: what no architecture's
// file says, a graph may. The same seed gives the same graph.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/model/model.h"

namespace lockstep {

inline constexpr size_t kGraphVocabulary = 150;

// The graph of a seed. One layer or two of attention and a feed-forward, each with norms, biases,
// activations, scales and residuals of any kind, and matrices of any format, some with a scale;
// 150 words, six query heads on three KV heads, or 130 on one.
Graph random_graph(uint64_t seed);

// Likewise of the operations that GPUs have.
Graph random_gpu_graph(uint64_t seed);

// Likewise an encoder, of texts of up to 520 tokens.
Graph random_encoder(uint64_t seed);
Graph random_gpu_encoder(uint64_t seed);  // of the operations that GPUs have

// A graph's weights at random, in a file that lasts as long as this object.
class RandomGraphFile {
 public:
  explicit RandomGraphFile(uint64_t seed, Graph (*make)(uint64_t) = &random_graph);
  ~RandomGraphFile();
  RandomGraphFile(const RandomGraphFile&) = delete;
  RandomGraphFile& operator=(const RandomGraphFile&) = delete;

  std::string path() const { return path_.string(); }
  Model model() const;

 private:
  uint64_t seed_;
  Graph (*make_)(uint64_t);
  std::filesystem::path path_;
};

// Expects what float64 computes of the file's graph, on every instruction set and in every profile.
void expect_what_float64_computes(const RandomGraphFile& file);

}  // namespace lockstep
