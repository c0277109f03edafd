// Layers that keep a state of each sequence, made at random for graphs of random_graph.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>

#include "engine/graph/graph.h"

namespace lockstep {

class RandomStateLayers {
 public:
  // How the graph gets weights, and how wide a hidden layer becomes whose rows must hold blocks.
  struct Weights {
    std::function<WeightId(size_t rows, size_t columns)> matrix;
    std::function<WeightId(const char* kind, size_t count)> vector;
    std::function<size_t(size_t columns)> width;
  };

  // A draw of these layers changes no other draw. Borrows the graph.
  RandomStateLayers(uint64_t seed, Graph& graph, Weights weights)
      : graph_(graph),
        weights_(std::move(weights)),
        states_(~(seed * 0xd1342543de82ef95U)),
        scans_(seed * 0xd1342543de82ef95U),
        columns_(seed * 0xa0761d6478bd642fU),
        decays_(~(seed * 0xa0761d6478bd642fU)) {}

  bool picks_convolution() { return pick_of_states(4) == 0; }
  // Adds to y, of as many columns as h, what some such layers make of h. `large_blocks`: rows hold
  // blocks of 256.
  ValueId add_beside(ValueId y, ValueId h, bool convolves, bool large_blocks);

 private:
  // Draws what keeps states.
  size_t pick_of_states(size_t count) { return states_() % count; }
  // Draws scans of Mamba-2, and of Mamba-1: likewise.
  size_t pick_of_scans(size_t count) { return scans_() % count; }
  size_t pick_of_columns(size_t count) { return columns_() % count; }
  // Draws decays of delta nets' rows: likewise.
  size_t pick_of_decays(size_t count) { return decays_() % count; }

  WeightId vector(const char* kind, size_t count) { return weights_.vector(kind, count); }
  ValueId product(ValueId x, size_t rows) {
    return graph_.matmul(x, weights_.matrix(rows, graph_.columns(x)));
  }
  ValueId convolution(ValueId h);
  ValueId delta_net(ValueId h);
  std::array<ValueId, 2> head_factors(ValueId h, const DeltaShape& shape, size_t decays);
  ValueId scan(ValueId h);
  ValueId scan_columns(ValueId h);

  Graph& graph_;
  const Weights weights_;
  std::mt19937_64 states_;
  std::mt19937_64 scans_;
  std::mt19937_64 columns_;
  std::mt19937_64 decays_;
  bool has_large_blocks_ = false;
};

}  // namespace lockstep
