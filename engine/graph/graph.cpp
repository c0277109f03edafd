#include "engine/graph/graph.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "engine/base/check.h"
#include "engine/kernels/attention.h"

namespace lockstep {
namespace {

Rows rows_after(Operation operation, Rows input) {
  if (gives_logit_rows(operation)) return Rows::kLogits;
  switch (operation) {
    case Operation::kExpertMatmul:
      return Rows::kExperts;
    case Operation::kExpertSum:
      return Rows::kTokens;
    default:
      return input;
  }
}

}  // namespace

WeightId Graph::add_matrix(std::string name, Format format, size_t rows, size_t columns,
                           size_t first_row, float scale) {
  weights_.push_back({std::move(name), format, rows, columns, true, first_row, scale});
  return weights_.size() - 1;
}

WeightId Graph::add_vector(std::string name, Format format, size_t columns, size_t first_row) {
  weights_.push_back({std::move(name), format, 1, columns, false, first_row});
  return weights_.size() - 1;
}

ValueId Graph::append(GraphNode node, size_t columns) {
  for (const ValueId input : node.inputs) {
    CHECK(input < columns_.size(), "value {} is used before it is computed", input);
  }
  node.output = columns_.size();
  columns_.push_back(columns);
  const Rows input = node.inputs.empty() ? Rows::kTokens : rows_[node.inputs.front()];
  rows_.push_back(rows_after(node.operation, input));
  nodes_.push_back(std::move(node));
  return nodes_.back().output;
}

ValueId Graph::embed(WeightId table, EmbedIndex index) {
  return append({.operation = Operation::kEmbed, .weight = table, .index = index},
                weights_[table].columns);
}

ValueId Graph::given_rows(size_t columns) {
  CHECK(columns > 0 && given_columns_ == 0, "rows of {} columns are given beside rows of {}",
        columns, given_columns_);
  given_columns_ = columns;
  return append({.operation = Operation::kGivenRows}, columns);
}

ValueId Graph::rms_norm(ValueId x, WeightId weight, float epsilon) {
  return append(
      {.operation = Operation::kRmsNorm, .inputs = {x}, .weight = weight, .epsilon = epsilon},
      columns(x));
}

ValueId Graph::append_head_norm(ValueId x, WeightId weight, float epsilon, size_t head_count,
                                bool subtracts_mean) {
  const size_t dimension = columns(x) / head_count;
  CHECK(weight == kNone || weights_[weight].columns == dimension ||
            weights_[weight].columns == columns(x),
        "{} heads of {} columns are normed with a weight of {}", head_count, dimension,
        weights_[weight].columns);
  CHECK(!subtracts_mean || dimension <= kMaxHeadDimension, "heads of {} columns are without mean",
        dimension);
  return append({.operation = Operation::kHeadNorm,
                 .inputs = {x},
                 .weight = weight,
                 .epsilon = epsilon,
                 .subtracts_mean = subtracts_mean,
                 .head_count = head_count,
                 .head_dimension = dimension},
                columns(x));
}

ValueId Graph::head_norm(ValueId x, WeightId weight, float epsilon, size_t head_count) {
  return append_head_norm(x, weight, epsilon, head_count, /*subtracts_mean=*/false);
}

ValueId Graph::head_layer_norm(ValueId x, WeightId weight, float epsilon, size_t head_count) {
  return append_head_norm(x, weight, epsilon, head_count, /*subtracts_mean=*/true);
}

ValueId Graph::l2_norm(ValueId x, float epsilon, size_t head_count) {
  const size_t head_dimension = columns(x) / head_count;
  const auto size = static_cast<float>(head_dimension);
  const ValueId normed = head_count == 1 ? rms_norm(x, kNone, epsilon / size)
                                         : head_norm(x, kNone, epsilon / size, head_count);
  return scale(normed, 1 / std::sqrt(size));
}

ValueId Graph::matmul(ValueId x, WeightId weight, WeightId bias) {
  CHECK(weights_[weight].columns == columns(x), "{} has {} columns, its input {}",
        weights_[weight].name, weights_[weight].columns, columns(x));
  return append({.operation = Operation::kMatmul, .inputs = {x}, .weight = weight, .bias = bias},
                weights_[weight].rows);
}

ValueId Graph::head_matmul(ValueId x, WeightId weight, size_t head_count) {
  const Weight& matrix = weights_[weight];
  CHECK(columns(x) == head_count * matrix.columns && matrix.rows % head_count == 0,
        "{} is {} x {}, and its input {} heads of {} columns in all", matrix.name, matrix.rows,
        matrix.columns, head_count, columns(x));
  CHECK(matrix.columns % kHeadBlock == 0 && matrix.rows / head_count % kHeadBlock == 0,
        "the heads of {} are {} x {}, no multiples of {}", matrix.name, matrix.rows / head_count,
        matrix.columns, kHeadBlock);
  return append({.operation = Operation::kHeadMatmul,
                 .inputs = {x},
                 .weight = weight,
                 .head_count = head_count,
                 .head_dimension = matrix.columns},
                matrix.rows);
}

ValueId Graph::slice_heads(ValueId x, size_t head_count, size_t first, size_t count) {
  const size_t dimension = columns(x) / head_count;
  CHECK(columns(x) % head_count == 0 && count > 0 && first + count <= dimension,
        "columns {} to {} of {} heads of {} columns in all", first, first + count, head_count,
        columns(x));
  return append({.operation = Operation::kSliceHeads,
                 .inputs = {x},
                 .head_count = head_count,
                 .head_dimension = dimension,
                 .first_column = first},
                head_count * count);
}

ValueId Graph::join_heads(ValueId x, size_t head_count, ValueId y, size_t y_head_count) {
  CHECK(columns(x) % head_count == 0 && columns(y) % y_head_count == 0 &&
            (y_head_count == head_count || y_head_count == 1) && rows(x) == rows(y),
        "{} heads of {} columns in all cannot be joined with {} of {}", head_count, columns(x),
        y_head_count, columns(y));
  const size_t dimension = columns(x) / head_count;
  return append({.operation = Operation::kJoinHeads,
                 .inputs = {x, y},
                 .head_count = head_count,
                 .kv_head_count = y_head_count,
                 .head_dimension = dimension},
                head_count * (dimension + columns(y) / y_head_count));
}

size_t Graph::add_rotary(Rotary rotary) {
  rotaries_.push_back(std::move(rotary));
  return rotaries_.size() - 1;
}

ValueId Graph::rotary(ValueId x, size_t head_count, size_t rotary) {
  CHECK(rotary < rotaries_.size(), "there is no rotary table {}", rotary);
  const size_t dimension = columns(x) / head_count;
  CHECK(2 * rotaries_[rotary].frequencies.size() <= dimension, "{} frequencies of a head of {}",
        rotaries_[rotary].frequencies.size(), dimension);
  return append({.operation = Operation::kRotary,
                 .inputs = {x},
                 .head_count = head_count,
                 .head_dimension = dimension,
                 .rotary = rotary},
                columns(x));
}

ValueId Graph::append_attention(GraphNode node) {
  const WeightId sinks = node.attention.sinks;
  CHECK(sinks == kNone || weights_[sinks].columns == node.head_count,
        "{} query heads of layer {} have other sinks", node.head_count, node.layer);
  const size_t columns = node.head_count * node.value_dimension;
  return append(std::move(node), columns);
}

ValueId Graph::attention(size_t layer, ValueId q, ValueId k, ValueId v, size_t head_count,
                         size_t kv_head_count, const AttentionTraits& traits) {
  return append_attention({.operation = Operation::kAttention,
                           .inputs = {q, k, v},
                           .head_count = head_count,
                           .kv_head_count = kv_head_count,
                           .head_dimension = columns(k) / kv_head_count,
                           .value_dimension = columns(v) / kv_head_count,
                           .layer = layer,
                           .attention = traits});
}

ValueId Graph::latent_attention(size_t layer, ValueId q, ValueId k, size_t head_count,
                                size_t kv_head_count, size_t value_dimension,
                                const AttentionTraits& traits) {
  const size_t dimension = columns(k) / kv_head_count;
  CHECK(value_dimension <= dimension, "values of {} in keys of {} dimensions", value_dimension,
        dimension);
  return append_attention({.operation = Operation::kAttention,
                           .inputs = {q, k},
                           .head_count = head_count,
                           .kv_head_count = kv_head_count,
                           .head_dimension = dimension,
                           .value_dimension = value_dimension,
                           .layer = layer,
                           .attention = traits});
}

ValueId Graph::attention_over(size_t layer, ValueId attended, ValueId q,
                              const AttentionTraits& traits) {
  const GraphNode& stored = nodes_[attended];
  CHECK(stored.operation == Operation::kAttention && stored.stored_by == kNone,
        "value {} stores no keys for layer {}", attended, layer);
  CHECK(columns(q) == stored.head_count * stored.head_dimension,
        "layer {} has queries of {} columns, layer {} keys of {}", layer, columns(q), stored.layer,
        stored.head_dimension);
  const AttentionTraits& its = stored.attention;
  CHECK(its.window == traits.window && its.section == traits.section && its.ahead == traits.ahead,
        "layers {} and {} share keys and see others", stored.layer, layer);
  GraphNode node = stored;
  node.inputs = {q};
  node.layer = layer;
  node.stored_by = attended;
  node.attention = traits;
  return append_attention(std::move(node));
}

ValueId Graph::layer_norm(ValueId x, WeightId weight, WeightId bias, float epsilon) {
  return append({.operation = Operation::kLayerNorm,
                 .inputs = {x},
                 .weight = weight,
                 .bias = bias,
                 .epsilon = epsilon},
                columns(x));
}

ValueId Graph::activation(const Activation& function, ValueId x) {
  return append({.operation = Operation::kActivation, .inputs = {x}, .activation = function},
                columns(x));
}

ValueId Graph::gate(const Activation& function, ValueId x, ValueId y) {
  CHECK(columns(x) == columns(y), "{} columns cannot gate {}", columns(x), columns(y));
  return append({.operation = Operation::kGate, .inputs = {x, y}, .activation = function},
                columns(x));
}

ValueId Graph::scale(ValueId x, float factor) {
  return append({.operation = Operation::kScale, .inputs = {x}, .scale = factor}, columns(x));
}

ValueId Graph::soft_cap(ValueId x, float cap) {
  return append({.operation = Operation::kSoftCap, .inputs = {x}, .scale = cap}, columns(x));
}

ValueId Graph::clamp(ValueId x, float bound) {
  return append({.operation = Operation::kClamp, .inputs = {x}, .scale = bound}, columns(x));
}

ValueId Graph::scale_rows(const Activation& function, ValueId factors, ValueId x) {
  CHECK(columns(factors) == 1 && rows(factors) == rows(x),
        "{} columns cannot be the factors of rows", columns(factors));
  return append(
      {.operation = Operation::kScaleRows, .inputs = {x, factors}, .activation = function},
      columns(x));
}

ValueId Graph::temperature(ValueId x, const Temperature& temperature) {
  CHECK(temperature.tokens > 0, "a temperature of {} tokens", temperature.tokens);
  return append({.operation = Operation::kTemperature, .inputs = {x}, .temperature = temperature},
                columns(x));
}

ValueId Graph::append_convolution(GraphNode node) {
  const size_t width = columns(node.inputs.front());
  const size_t factors = weights_[node.weight].columns;
  node.taps = factors / width;
  CHECK(factors % width == 0 && node.taps >= kLeastTaps && node.taps <= kMostTaps,
        "{} factors of a convolution of {} columns: each has {} to {}", factors, width, kLeastTaps,
        kMostTaps);
  CHECK(node.bias == kNone || weights_[node.bias].columns == width,
        "{} values are added to {} columns", weights_[node.bias].columns, width);
  for (const ValueId input : node.inputs) {
    CHECK(columns(input) == width && rows(input) == Rows::kTokens,
          "{} columns of a convolution of {}, of every token", columns(input), width);
  }
  return append(std::move(node), width);
}

ValueId Graph::convolve(ValueId x, WeightId weight, WeightId bias) {
  return append_convolution(
      {.operation = Operation::kConvolution, .inputs = {x}, .weight = weight, .bias = bias});
}

ValueId Graph::convolve_gated(ValueId x, ValueId before, ValueId behind, WeightId weight,
                              WeightId bias) {
  return append_convolution({.operation = Operation::kConvolution,
                             .inputs = {x, before, behind},
                             .weight = weight,
                             .bias = bias});
}

ValueId Graph::delta_net(ValueId v, ValueId q, ValueId k, ValueId beta, ValueId alpha,
                         WeightId decay, WeightId bias, const DeltaShape& shape) {
  const size_t heads = shape.value_heads;
  CHECK(shape.key_heads > 0 && heads % shape.key_heads == 0, "{} value heads of {} key heads",
        heads, shape.key_heads);
  const size_t dimension = columns(k) / shape.key_heads;
  CHECK(columns(q) == columns(k) && columns(k) % shape.key_heads == 0 &&
            dimension <= kMostDeltaDimensions && columns(v) % (heads * kHeadBlock) == 0,
        "{} columns of queries, {} of {} keys and {} of {} values", columns(q), columns(k),
        shape.key_heads, columns(v), heads);
  const size_t decays = columns(alpha) / heads;
  CHECK(columns(beta) == heads && columns(alpha) % heads == 0 && weights_[decay].columns == heads &&
            weights_[bias].columns == columns(alpha) && (decays == 1 || decays == dimension),
        "other factors than {} heads with {} decays have", heads, decays);
  for (const ValueId input : {v, q, k, beta, alpha}) {
    CHECK(rows(input) == Rows::kTokens, "value {} has not a row for every token", input);
  }
  return append({.operation = Operation::kDeltaNet,
                 .inputs = {v, q, k, beta, alpha},
                 .weight = decay,
                 .bias = bias,
                 .decay_count = decays,
                 .head_count = heads,
                 .head_dimension = dimension,
                 .value_dimension = columns(v) / heads,
                 .delta = shape},
                columns(v));
}

ValueId Graph::scan(ValueId x, ValueId c, ValueId b, ValueId steps, WeightId decay, WeightId bias,
                    WeightId skip, const DeltaShape& shape) {
  const size_t heads = shape.value_heads;
  CHECK(shape.key_heads > 0 && heads % shape.key_heads == 0, "{} heads of {} groups", heads,
        shape.key_heads);
  const size_t dimension = columns(b) / shape.key_heads;
  CHECK(columns(b) == columns(c) && columns(b) % shape.key_heads == 0 &&
            dimension <= kMostDeltaDimensions && columns(x) % heads == 0 &&
            std::lcm(columns(x) / heads, kChunkColumns) <= kMostScannedColumns,
        "{} and {} columns of {} groups and {} of {} heads", columns(b), columns(c),
        shape.key_heads, columns(x), heads);
  const size_t decays = weights_[decay].columns / heads;
  CHECK(columns(steps) == heads && weights_[decay].columns % heads == 0 &&
            weights_[bias].columns == heads && weights_[skip].columns == heads,
        "other factors than {} heads have", heads);
  CHECK(decays == 1 || (decays == dimension && columns(x) == heads && shape.key_heads == 1),
        "{} decays of each of {} heads of {} columns in all, {} rows and {} groups", decays, heads,
        columns(x), dimension, shape.key_heads);
  for (const ValueId input : {x, c, b, steps}) {
    CHECK(rows(input) == Rows::kTokens, "value {} has not a row for every token", input);
  }
  return append({.operation = Operation::kScan,
                 .inputs = {x, c, b, steps},
                 .weight = decay,
                 .bias = bias,
                 .skip = skip,
                 .decay_count = decays,
                 .head_count = heads,
                 .head_dimension = dimension,
                 .value_dimension = columns(x) / heads,
                 .delta = shape},
                columns(x));
}

ValueId Graph::add(ValueId x, ValueId y) {
  CHECK(columns(x) == columns(y), "{} and {} columns cannot be added", columns(x), columns(y));
  return append({.operation = Operation::kAdd, .inputs = {x, y}}, columns(x));
}

void Graph::keep(ValueId value) {
  CHECK(value < value_count() && rows(value) == Rows::kTokens,
        "value {} has not a row for every token", value);
  kept_.push_back(value);
}

ValueId Graph::select_rows(ValueId x) {
  return append({.operation = Operation::kSelectRows, .inputs = {x}}, columns(x));
}

ValueId Graph::mean_rows(ValueId x) {
  CHECK(sees_ahead() && rows(x) == Rows::kTokens,
        "a mean over sequences that are not in one pass, or of some of their rows");
  return append({.operation = Operation::kMeanRows, .inputs = {x}}, columns(x));
}

ValueId Graph::route(ValueId scores, size_t chosen_count, const Gating& gating, WeightId bias) {
  const size_t experts = columns(scores);
  const size_t groups = gating.group_count;
  const size_t chosen_groups = gating.chosen_groups;
  CHECK(gating.group_values == 1 || gating.group_values == 2, "groups by {} values",
        gating.group_values);
  CHECK(experts <= kMostExperts, "{} experts, at most {} are known", experts, kMostExperts);
  CHECK(groups > 0 && chosen_groups > 0 && chosen_groups <= groups && experts % groups == 0,
        "{} of {} groups of {} experts", chosen_groups, groups, experts);
  const size_t choice = experts / groups * chosen_groups;
  CHECK(chosen_count > 0 && chosen_count <= choice, "{} of {} experts", chosen_count, choice);
  CHECK(bias == kNone || weights_[bias].columns == experts, "{} values are to choose of {} experts",
        weights_[bias].columns, experts);
  chosen_experts_ = std::max(chosen_experts_, chosen_count);
  most_experts_ = std::max(most_experts_, experts);
  return append({.operation = Operation::kRoute,
                 .inputs = {scores},
                 .bias = bias,
                 .expert_count = experts,
                 .chosen_count = chosen_count,
                 .gating = gating},
                chosen_count);
}

bool Graph::sees_ahead() const {
  return std::ranges::any_of(nodes_,
                             [](const GraphNode& node) { return node.attention.ahead != 0; });
}

bool Graph::has_states() const {
  return std::ranges::any_of(nodes_, has_state);
}

std::set<WeightId> Graph::routers() const {
  std::set<WeightId> routers;
  for (const GraphNode& node : nodes_) {
    if (node.operation != Operation::kRoute) continue;
    const GraphNode* product = &producer(node.inputs[0]);
    while (product->operation == Operation::kScale) product = &producer(product->inputs[0]);
    routers.insert(product->weight);
  }
  return routers;
}

// The experts are all of one format and size, and as many as the routing chooses among.
ValueId Graph::append_experts(GraphNode node) {
  const auto [x, routing] = std::array{node.inputs[0], node.inputs[1]};
  const std::vector<WeightId>& experts = node.experts;
  CHECK(!experts.empty() && producer(routing).expert_count == experts.size(),
        "{} experts, and a routing among {}", experts.size(), producer(routing).expert_count);
  const Weight& first = weights_[experts.front()];
  for (const WeightId id : experts) {
    const Weight& weight = weights_[id];
    CHECK(
        weight.format == first.format && weight.rows == first.rows && weight.columns == columns(x),
        "{} is not as the other experts' or as its input of {} columns", weight.name, columns(x));
  }
  CHECK(node.biases.empty() || node.biases.size() == experts.size(), "{} biases of {} experts",
        node.biases.size(), experts.size());
  for (const WeightId id : node.biases) {
    CHECK(weights_[id].columns == first.rows, "{} has {} columns, its expert {} rows",
          weights_[id].name, weights_[id].columns, first.rows);
  }
  const size_t rows = first.rows;
  return append(std::move(node), rows);
}

ValueId Graph::expert_matmul(ValueId x, ValueId routing, std::vector<WeightId> experts,
                             std::vector<WeightId> biases) {
  return append_experts({.operation = Operation::kExpertMatmul,
                         .inputs = {x, routing},
                         .experts = std::move(experts),
                         .biases = std::move(biases)});
}

ValueId Graph::expert_sum(ValueId x, ValueId routing, std::vector<WeightId> experts,
                          std::vector<WeightId> biases) {
  return append_experts({.operation = Operation::kExpertSum,
                         .inputs = {x, routing},
                         .experts = std::move(experts),
                         .biases = std::move(biases)});
}

float alibi_slope(size_t head, size_t head_count, float bias) {
  const size_t whole = std::bit_floor(head_count);
  const bool beyond = head >= whole;
  const size_t count = beyond ? 2 * whole : whole;
  const size_t place = beyond ? 2 * (head - whole) : head;
  const double share = static_cast<double>(place + 1) / static_cast<double>(count);
  return static_cast<float>(std::exp2(-double{bias} * share));
}

Range delta_operand(const GraphNode& node, size_t input, Range value_heads) {
  const auto columns = [&](size_t each) {
    return Range{value_heads.begin * each, value_heads.end * each};
  };
  if (input == 0) return columns(node.value_dimension);
  if (input == 4) return columns(node.decay_count);
  if (input > 2 || value_heads.empty()) return columns(1);
  const DeltaShape& shape = node.delta;
  const bool takes_all = shape.is_tiled && value_heads.size() >= shape.key_heads;
  size_t first = shape.key_head(value_heads.begin);
  size_t last = shape.key_head(value_heads.end - 1);
  if (takes_all || first > last) {
    first = 0;
    last = shape.key_heads - 1;
  }
  return {first * node.head_dimension, (last + 1) * node.head_dimension};
}

std::vector<uint32_t> own_key_heads(const GraphNode& node, Range value_heads) {
  const size_t first = delta_operand(node, 1, value_heads).begin / node.head_dimension;
  std::vector<uint32_t> key_heads;
  for (size_t head = value_heads.begin; head < value_heads.end; ++head) {
    key_heads.push_back(static_cast<uint32_t>(node.delta.key_head(head) - first));
  }
  return key_heads;
}

bool has_own_norms(const Graph& graph, const GraphNode& node) {
  return node.operation == Operation::kHeadNorm && node.weight != kNone &&
         graph.weights()[node.weight].columns > node.head_dimension;
}

std::vector<ValueReaders> find_readers(const Graph& graph) {
  std::vector<ValueReaders> readers(graph.value_count());
  for (size_t index = 0; index < graph.nodes().size(); ++index) {
    for (const ValueId input : graph.nodes()[index].inputs) {
      readers[input].nodes.push_back(index);
      ++readers[input].count;
    }
  }
  if (graph.logits() != kNone) ++readers[graph.logits()].count;
  for (const ValueId value : graph.kept()) ++readers[value].count;
  return readers;
}

WeightId multiplied_weight(const GraphNode& node, ValueId input) {
  const bool is_product =
      node.operation == Operation::kMatmul || node.operation == Operation::kHeadMatmul;
  if (!is_product && node.experts.empty()) return kNone;
  if (input != node.inputs.front()) return kNone;
  return is_product ? node.weight : node.experts.front();
}

}  // namespace lockstep
