// Models of any size without a file, for layouts on paper.
#pragma once

#include <string>
#include <vector>

#include "engine/model/architecture.h"

namespace lockstep {

struct PaperShape {
  std::string name;
  size_t layers = 0;
  size_t columns = 0;
  size_t feed_forward = 0;
  size_t heads = 0;
  size_t kv_heads = 0;
  size_t head_dimension = 0;
  size_t vocabulary = 0;
  size_t window = 0;  // of all layers but each sixth; 0: every layer sees all tokens
};

inline Model make_model(const PaperShape& shape) {
  Model model;
  model.architecture = "simulated";
  model.trained_context_tokens = 131072;
  model.vocabulary_size = shape.vocabulary;
  Graph& graph = model.graph;
  graph.add_rotary({RotaryPairs::kHalves, std::vector<double>(shape.head_dimension / 2, 1.0)});
  size_t count = 0;
  const auto product = [&](ValueId x, size_t rows, size_t columns) {
    const std::string name = "matrix" + std::to_string(++count);
    return graph.matmul(x, graph.add_matrix(name, Format::kQ4_K, rows, columns));
  };
  const auto normed = [&](ValueId x) {
    const std::string name = "norm" + std::to_string(++count);
    return graph.rms_norm(x, graph.add_vector(name, Format::kF32, shape.columns), 1e-5F);
  };
  const size_t attended = shape.heads * shape.head_dimension;
  const size_t kv = shape.kv_heads * shape.head_dimension;
  ValueId x =
      graph.embed(graph.add_matrix("embedding", Format::kQ4_K, shape.vocabulary, shape.columns));
  for (size_t layer = 0; layer < shape.layers; ++layer) {
    const ValueId h = normed(x);
    const ValueId q = graph.rotary(product(h, attended, shape.columns), shape.heads);
    const ValueId k = graph.rotary(product(h, kv, shape.columns), shape.kv_heads);
    const ValueId v = product(h, kv, shape.columns);
    const size_t window = (layer + 1) % 6 == 0 ? 0 : shape.window;
    const ValueId out = graph.attention(layer, q, k, v, shape.heads, shape.kv_heads,
                                        {.scale = 0.1F, .window = window});
    x = graph.add(x, product(out, shape.columns, attended));
    const ValueId h2 = normed(x);
    const ValueId gate = product(h2, shape.feed_forward, shape.columns);
    const ValueId up = product(h2, shape.feed_forward, shape.columns);
    x = graph.add(x, product(graph.gate(ActivationFunction::kSilu, gate, up), shape.columns,
                             shape.feed_forward));
  }
  graph.set_logits(product(normed(graph.select_rows(x)), shape.vocabulary, shape.columns));
  return model;
}

}  // namespace lockstep
