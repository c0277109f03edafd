// Graphs to plan, and where the plans put things.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/planner/planner.h"

namespace lockstep {

inline constexpr size_t kExpertCount = 6;
inline constexpr size_t kChosenCount = 2;

// Adds what follows attention in a layer of a mixture: the router and the experts.
inline ValueId add_experts(Graph& graph, Format format, const std::string& at, ValueId h,
                           const Gating& gating = {}, bool has_biases = false) {
  const size_t columns = graph.columns(h);
  const auto matrices = [&](const std::string& name, size_t rows, size_t wide) {
    std::vector<WeightId> experts;
    for (size_t expert = 0; expert < kExpertCount; ++expert) {
      experts.push_back(graph.add_matrix(name + at, format, rows, wide, expert * rows));
    }
    return experts;
  };
  const auto biases = [&](const std::string& name, size_t rows) {
    std::vector<WeightId> vectors(has_biases ? kExpertCount : 0);
    for (WeightId& id : vectors) id = graph.add_vector(name + at, Format::kF32, rows);
    return vectors;
  };
  const WeightId router = graph.add_matrix("router" + at, Format::kF32, kExpertCount, columns);
  const ValueId routing = graph.route(graph.matmul(h, router), kChosenCount, gating);
  const ValueId gate =
      graph.expert_matmul(h, routing, matrices("gate", 96, columns), biases("gate bias", 96));
  const ValueId up =
      graph.expert_matmul(h, routing, matrices("up", 96, columns), biases("up bias", 96));
  return graph.expert_sum(graph.gate(ActivationFunction::kSilu, gate, up), routing,
                          matrices("down", columns, 96), biases("down bias", columns));
}

// Two layers of the usual decoder, with weights of one format. `traits`: any number for sinks
// gives them to both layers.
inline Graph make_graph(Format format, bool is_mixture = false,
                        AttentionTraits traits = {.scale = 0.25F}) {
  constexpr size_t kColumns = 64;
  Graph graph;
  graph.add_rotary({RotaryPairs::kHalves, std::vector<double>(8, 1.0)});
  const auto matrix = [&](const std::string& name, size_t rows, size_t columns) {
    return graph.add_matrix(name, format, rows, columns);
  };
  const auto norm = [&](const std::string& name, size_t columns) {
    return graph.add_vector(name, Format::kF32, columns);
  };
  const WeightId table = matrix("embedding", 100, kColumns);
  if (traits.sinks != kNone) traits.sinks = graph.add_vector("sinks", Format::kF32, 4);
  ValueId x = graph.embed(table);
  for (size_t layer = 0; layer < 2; ++layer) {
    const std::string at = std::to_string(layer);
    const ValueId h = graph.rms_norm(x, norm("norm" + at, kColumns), 1e-5F);
    ValueId q = graph.matmul(h, matrix("q" + at, 64, kColumns));
    ValueId k = graph.matmul(h, matrix("k" + at, 32, kColumns));
    const ValueId v = graph.matmul(h, matrix("v" + at, 32, kColumns));
    q = graph.rotary(graph.head_norm(q, norm("qn" + at, 16), 1e-5F, 4), 4);
    k = graph.rotary(graph.head_norm(k, norm("kn" + at, 16), 1e-5F, 2), 2);
    const ValueId attended = graph.attention(layer, q, k, v, 4, 2, traits);
    x = graph.add(x, graph.matmul(attended, matrix("o" + at, kColumns, 64)));
    const ValueId h2 = graph.rms_norm(x, norm("norm2" + at, kColumns), 1e-5F);
    if (is_mixture) {
      x = graph.add(x, add_experts(graph, format, at, h2));
      continue;
    }
    const ValueId gate = graph.matmul(h2, matrix("gate" + at, 96, kColumns));
    const ValueId up = graph.matmul(h2, matrix("up" + at, 96, kColumns));
    x = graph.add(x, graph.matmul(graph.gate(ActivationFunction::kSilu, gate, up),
                                  matrix("down" + at, 64, 96)));
  }
  const ValueId last = graph.rms_norm(graph.select_rows(x), norm("last", kColumns), 1e-5F);
  graph.set_logits(graph.matmul(last, table));
  return graph;
}

inline const PlanOptions kOptions{.batch_tokens = 8, .logit_rows = 4, .kv_pages = 3};

inline Split split_evenly(const Graph& graph, size_t rank_count,
                          Strategy strategy = Strategy::kGather) {
  const std::vector<double> shares(rank_count, 1.0);
  return split_graph(graph, shares, strategy).value();
}

inline Plan plan_alone(const Graph& graph) {
  return make_plan(graph, split_evenly(graph, 1), 0, kOptions);
}

template <typename T>
size_t count_steps(const Plan& plan) {
  return static_cast<size_t>(std::ranges::count_if(
      plan.steps, [](const Step& step) { return std::holds_alternative<T>(step.work); }));
}

struct Extent {
  Arena arena = Arena::kNowhere;
  size_t begin = 0;
  size_t end = 0;

  bool overlaps(const Extent& other) const {
    return arena == other.arena && begin < other.end && other.begin < end;
  }
};

template <typename T>
Extent extent(const ArenaOffset<T>& base, size_t rows, size_t stride_bytes) {
  return {base.arena, base.bytes, base.bytes + rows * stride_bytes};
}

// Whether it lies in its arena, which the plan has taken.
inline bool is_held(const Extent& extent, const Plan& plan) {
  const size_t bytes = extent.arena == Arena::kScratch    ? plan.scratch_bytes
                       : extent.arena == Arena::kExchange ? plan.exchange_bytes
                       : extent.arena == Arena::kLogits   ? plan.logits_bytes
                                                          : 0;
  return extent.end <= bytes;
}

inline void add_forms(std::vector<Extent>& extents, const Forms& forms,
                      size_t rows = kOptions.batch_tokens) {
  for (const FormBuffer& buffer : forms.buffers) {
    if (buffer.is_read()) extents.push_back(extent(buffer.rows, rows, buffer.stride_bytes));
  }
}

inline void add_chunks(std::vector<Extent>& extents, const ChunkSums& chunks,
                       size_t rows = kOptions.batch_tokens) {
  if (!chunks.sums) return;
  extents.push_back(extent(chunks.sums, rows, chunks.stride * sizeof(float)));
}

inline void add_norms(std::vector<Extent>& extents, const ResidualFinish& finish) {
  for (const NormOutput& norm : finish.norms) {
    const size_t rows = norm.rows == Rows::kTokens ? kOptions.batch_tokens : kOptions.logit_rows;
    add_forms(extents, norm.output.forms, rows);
    add_chunks(extents, norm.chunks, rows);
  }
}

inline const size_t kExpertOutputRows = kOptions.batch_tokens * kChosenCount;

}  // namespace lockstep
