// One walk over a graph in float64, with or without errors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/graph/graph.h"
#include "tests/engine/runtime/reference_choice.h"
#include "tests/engine/runtime/reference_model.h"

namespace lockstep {

class ReferenceWalk {
 public:
  // `draw`: of the errors; 0: none are made, and `roundings` means nothing. Borrows all of them.
  ReferenceWalk(const Graph& graph, const std::vector<std::vector<float>>& weights,
                std::span<const TokenId> tokens, std::span<const float> given_rows,
                const Roundings& roundings, uint64_t draw)
      : graph_(graph),
        weights_(weights),
        tokens_(tokens),
        given_rows_(given_rows),
        roundings_(roundings),
        draw_(draw),
        random_(draw * 0x9e3779b97f4a7c15U),
        values_(graph.value_count()) {}

  ReferenceRows run();  // once
  // After run(): any value's.
  const ReferenceRows& rows(ValueId value) const { return values_[value]; }
  // After run(): what the product that gives the logits reads.
  const ReferenceRows& hidden() const;

 private:
  using Choice = ReferenceChoice;  // of one routing: by token

  // Even in [-1, 1].
  double random();
  double moved(double value, double relative);
  void move_all(std::vector<double>& values, double relative);
  // By at most half a step of its block of 32, of which so many make the greatest element.
  void move_blocks(std::vector<double>& values, double scale_error, double steps);
  void store(ReferenceRows& rows, KvFormat format, size_t head_dimension);
  std::vector<double> as_input(std::vector<double> x, Format weights);
  std::vector<double> weight_values(WeightId id);
  // W x of one token, times W's scale; `summed`: it is added to a residual.
  std::vector<double> product(WeightId id, const std::vector<double>& weight,
                              const std::vector<double>& x, bool summed);
  bool is_summed(ValueId value) const;

  ReferenceRows matmul(const GraphNode& node);
  ReferenceRows head_matmul(const GraphNode& node);
  ReferenceRows copy_heads(const GraphNode& node);
  ReferenceRows experts(const GraphNode& node);
  std::vector<Choice> choose(const GraphNode& node, const std::vector<double>& scores);
  ReferenceRows attend(const GraphNode& node);
  std::vector<double> attend_token(const GraphNode& node, size_t token, const ReferenceRows& keys,
                                   const ReferenceRows& values);
  ReferenceRows norm(const GraphNode& node);
  ReferenceRows layer_norm(const GraphNode& node);
  ReferenceRows elementwise(const GraphNode& node);
  ReferenceRows convolve(const GraphNode& node);
  ReferenceRows mean(const GraphNode& node);
  ReferenceRows delta_net(const GraphNode& node);
  ReferenceRows scan(const GraphNode& node);
  std::vector<double> delta_head(const GraphNode& node, size_t head, size_t token,
                                 std::vector<double>& state);
  ReferenceRows rotate(const GraphNode& node);
  ReferenceRows compute(const GraphNode& node);

  const Graph& graph_;
  const std::vector<std::vector<float>>& weights_;
  std::span<const TokenId> tokens_;
  std::span<const float> given_rows_;
  const Roundings& roundings_;
  const uint64_t draw_;
  uint64_t random_;
  std::vector<ReferenceRows> values_;  // by ValueId; of experts: [token * chosen + choice]
  std::vector<std::vector<std::vector<Choice>>> routings_ =
      std::vector<std::vector<std::vector<Choice>>>(graph_.value_count());
};

}  // namespace lockstep
