#include "tests/engine/runtime/reference_walk.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>

#include "engine/base/check.h"

namespace lockstep {
namespace {

// Half a unit in the last place as a part of a value, at most.
const double kBf16 = std::ldexp(1.0, -8);
const double kF16 = std::ldexp(1.0, -11);
const double kF32 = std::ldexp(1.0, -24);
// The error of a function in f32, an exponential for one: some units.
const double kFunction = std::ldexp(1.0, -20);

double silu(double x) {
  return x / (1 + std::exp(-x));
}

double activation_of(const Activation& activation, double x) {
  const auto& [a, b, c, d] = activation.parameters;
  const double bounded = std::min(x, double{b});
  switch (activation.function) {
    case ActivationFunction::kSilu:
      return silu(x);
    case ActivationFunction::kGelu:
      return x * std::erfc(-x / std::sqrt(2.0)) / 2;
    case ActivationFunction::kGeluTanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case ActivationFunction::kGeluQuick:
      return x / (1 + std::exp(-1.702 * x));
    case ActivationFunction::kRelu:
      return std::max(x, 0.0);
    case ActivationFunction::kReluSquared:
      return std::max(x, 0.0) * std::max(x, 0.0);
    case ActivationFunction::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case ActivationFunction::kXielu:
      return x > 0 ? double{a} * x * x + double{c} * x
                   : double{b} * (std::expm1(std::min(x, double{d})) - x) + double{c} * x;
    case ActivationFunction::kClippedSwiglu:
      return bounded / (1 + std::exp(-double{a} * bounded));
  }
  return 0;
}

double gated(const Activation& activation, double y) {
  if (activation.function != ActivationFunction::kClippedSwiglu) return y;
  const double limit = activation.parameters[1];
  return std::clamp(y, -limit, limit) + 1;
}

// By ALiBi: heads beyond a power of two have every second slope of twice as many.
double slope_of(const GraphNode& node, size_t head) {
  const double bias = node.attention.alibi_bias;
  if (bias == 0) return 0;
  size_t count = 1;
  while (2 * count <= node.head_count) count *= 2;
  const auto heads = static_cast<double>(count);
  if (head < count) return std::pow(2, -bias / heads * static_cast<double>(head + 1));
  return std::pow(2, -bias / 2 / heads * static_cast<double>(2 * (head - count) + 1));
}

double factor_at(const Temperature& temperature, size_t position) {
  const auto ahead = static_cast<double>(position + temperature.offset);
  const double periods = std::floor(ahead / static_cast<double>(temperature.tokens));
  return 1 + double{temperature.scale} * std::log(periods + 1);
}

// Each `size` values times the Hadamard matrix of that size over its root, which is its own
// inverse.
void turn(std::vector<double>& values, size_t size) {
  const double factor = 1 / std::sqrt(static_cast<double>(size));
  for (size_t apart = 1; apart < size; apart *= 2) {
    for (size_t i = 0; i < values.size(); ++i) {
      if ((i & apart) != 0) continue;
      const double first = values[i];
      values[i] = first + values[i + apart];
      values[i + apart] = first - values[i + apart];
    }
  }
  for (double& value : values) value *= factor;
}

struct Dot {
  double sum = 0;
  double magnitude = 0;  // the sum of the terms' absolute values
};

// The product of two arrays of first.size() numbers, as several sums side by side, of which each
// waits for itself alone.
Dot dot(std::span<const double> first, const double* b) {
  constexpr size_t kLanes = 16;
  std::array<double, kLanes> sums{};
  std::array<double, kLanes> magnitudes{};
  const double* a = first.data();
  size_t i = 0;
  for (; i + kLanes <= first.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double term = a[i + lane] * b[i + lane];
      sums[lane] += term;
      magnitudes[lane] += std::abs(term);
    }
  }
  Dot all;
  for (; i < first.size(); ++i) {
    all.sum += a[i] * b[i];
    all.magnitude += std::abs(a[i] * b[i]);
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    all.sum += sums[lane];
    all.magnitude += magnitudes[lane];
  }
  return all;
}

double kv_error(KvFormat format) {
  if (format == KvFormat::kBf16) return kBf16;
  return format == KvFormat::kF16 ? kF16 : 0;
}

}  // namespace

// splitmix64 (Vigna).
double ReferenceWalk::random() {
  random_ += 0x9e3779b97f4a7c15U;
  uint64_t z = random_;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return static_cast<double>((z ^ (z >> 31U)) >> 11U) * 0x1p-52 - 1;
}

double ReferenceWalk::moved(double value, double relative) {
  return draw_ == 0 || relative == 0 ? value : value + std::abs(value) * relative * random();
}

void ReferenceWalk::move_all(std::vector<double>& values, double relative) {
  if (draw_ == 0 || relative == 0) return;
  for (double& value : values) value = moved(value, relative);
}

void ReferenceWalk::move_blocks(std::vector<double>& values, double scale_error, double steps) {
  if (draw_ == 0) return;
  for (size_t begin = 0; begin < values.size(); begin += kQ8BlockElements) {
    const size_t end = std::min(values.size(), begin + kQ8BlockElements);
    double most = 0;
    for (size_t i = begin; i < end; ++i) most = std::max(most, std::abs(values[i]));
    for (size_t i = begin; i < end; ++i) {
      values[i] = moved(values[i], scale_error) + most / steps / 2 * random();
    }
  }
}

std::vector<double> ReferenceWalk::as_input(std::vector<double> x, Format weights) {
  switch (roundings_.inputs[static_cast<size_t>(weights)]) {
    case ActivationForm::kF32:
      break;
    case ActivationForm::kQ8:
      move_blocks(x, kF32, 127);
      break;
    case ActivationForm::kBf16:
    case ActivationForm::kBf16Dots:
      move_all(x, kBf16);
      break;
  }
  return x;
}

std::vector<double> ReferenceWalk::weight_values(WeightId id) {
  const std::vector<float>& held = weights_[id];
  std::vector<double> values(held.begin(), held.end());
  const bool is_rounded = roundings_.bf16_weights && graph_.weights()[id].format != Format::kF32;
  if (is_rounded) move_all(values, kBf16);
  return values;
}

// The error of an f32 sum of n terms in any order grows as sqrt(n) roundings of its terms.
std::vector<double> ReferenceWalk::product(WeightId id, const std::vector<double>& weight,
                                           const std::vector<double>& x, bool summed) {
  const size_t rows = weight.size() / x.size();
  const size_t columns = x.size();
  const size_t parts = summed && roundings_.bf16_sums ? roundings_.ranks : 1;
  const double sum_error = kF32 * std::sqrt(static_cast<double>(columns));
  const double scale = graph_.weights()[id].scale;
  std::vector<double> y(rows);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t part = 0; part < parts; ++part) {
      const size_t begin = columns * part / parts;
      const size_t end = columns * (part + 1) / parts;
      auto [sum, magnitude] =
          dot(std::span(weight).subspan(row * columns + begin, end - begin), &x[begin]);
      if (draw_ != 0) sum += magnitude * sum_error * random();
      y[row] += scale * (parts > 1 ? moved(sum, kBf16) : sum);
    }
    if (parts > 1) y[row] = moved(y[row], kBf16);
  }
  return y;
}

bool ReferenceWalk::is_summed(ValueId value) const {
  return std::ranges::any_of(graph_.nodes(), [&](const GraphNode& node) {
    return node.operation == Operation::kAdd &&
           std::ranges::find(node.inputs, value) != node.inputs.end();
  });
}

ReferenceRows ReferenceWalk::matmul(const GraphNode& node) {
  const std::vector<double> weight = weight_values(node.weight);
  const bool summed = is_summed(node.output);
  ReferenceRows rows;
  for (const auto& x : values_[node.inputs[0]]) {
    rows.push_back(
        product(node.weight, weight, as_input(x, graph_.weights()[node.weight].format), summed));
    if (node.bias == kNone) continue;
    for (size_t i = 0; i < rows.back().size(); ++i) rows.back()[i] += weights_[node.bias][i];
  }
  return rows;
}

ReferenceRows ReferenceWalk::head_matmul(const GraphNode& node) {
  const Weight& matrix = graph_.weights()[node.weight];
  const std::vector<double> weight = weight_values(node.weight);
  const auto size = static_cast<ptrdiff_t>(weight.size() / node.head_count);
  const auto columns = static_cast<ptrdiff_t>(matrix.columns);
  ReferenceRows rows;
  for (const auto& all : values_[node.inputs[0]]) {
    const std::vector<double> x = as_input(all, matrix.format);
    rows.emplace_back();
    for (ptrdiff_t head = 0; head < static_cast<ptrdiff_t>(node.head_count); ++head) {
      const auto y =
          product(node.weight, {weight.begin() + head * size, weight.begin() + (head + 1) * size},
                  {x.begin() + head * columns, x.begin() + (head + 1) * columns}, /*summed=*/false);
      rows.back().insert(rows.back().end(), y.begin(), y.end());
    }
  }
  return rows;
}

// Columns of each head of one operand or two.
ReferenceRows ReferenceWalk::copy_heads(const GraphNode& node) {
  const size_t columns = graph_.columns(node.output) / node.head_count;
  const bool joins = node.operation == Operation::kJoinHeads;
  ReferenceRows rows;
  for (size_t row = 0; row < values_[node.inputs[0]].size(); ++row) {
    const std::vector<double>& x = values_[node.inputs[0]][row];
    rows.emplace_back();
    for (size_t head = 0; head < node.head_count; ++head) {
      for (size_t i = 0; i < columns; ++i) {
        const bool is_first = !joins || i < node.head_dimension;
        if (is_first) {
          rows.back().push_back(x[head * node.head_dimension + node.first_column + i]);
          continue;
        }
        const std::vector<double>& y = values_[node.inputs[1]][row];
        const size_t of_head = node.kv_head_count == 1 ? 0 : head * (columns - node.head_dimension);
        rows.back().push_back(y[of_head + i - node.head_dimension]);
      }
    }
  }
  return rows;
}

// Expert by expert, so that each one's weights are rounded once.
ReferenceRows ReferenceWalk::experts(const GraphNode& node) {
  const bool sums = node.operation == Operation::kExpertSum;
  const auto& routing = routings_[node.inputs[1]];
  const bool weighs_inputs = graph_.producer(node.inputs[1]).gating.weighs_inputs;
  const ReferenceRows& input = values_[node.inputs[0]];
  const size_t chosen = graph_.producer(node.inputs[1]).chosen_count;
  const size_t rows = sums ? tokens_.size() : tokens_.size() * chosen;
  ReferenceRows output(rows, std::vector<double>(graph_.columns(node.output)));
  for (size_t expert = 0; expert < node.experts.size(); ++expert) {
    const WeightId id = node.experts[expert];
    const std::vector<double> weight = weight_values(id);
    for (size_t token = 0; token < tokens_.size(); ++token) {
      for (size_t choice = 0; choice < chosen; ++choice) {
        if (routing[token][choice].expert != expert) continue;
        const auto& x = input[sums ? token * chosen + choice : token];
        auto y = product(id, weight, as_input(x, graph_.weights()[id].format), sums);
        const double factor = sums != weighs_inputs ? routing[token][choice].weight : 1;
        if (!sums) std::ranges::for_each(y, [&](double& each) { each *= factor; });
        for (size_t i = 0; i < y.size() && !node.biases.empty(); ++i) {
          y[i] += double{weights_[node.biases[expert]][i]};
        }
        auto& out = output[sums ? token : token * chosen + choice];
        for (size_t i = 0; i < y.size(); ++i) out[i] += (sums ? factor : 1) * y[i];
      }
    }
  }
  return output;
}

std::vector<double> ReferenceWalk::attend_token(const GraphNode& node, size_t token,
                                                const ReferenceRows& keys,
                                                const ReferenceRows& values) {
  const size_t dimension = node.head_dimension;
  const size_t group = node.head_count / node.kv_head_count;
  const AttentionTraits& traits = node.attention;
  const size_t in_section = traits.section > 0 ? token - token % traits.section : 0;
  const size_t window = traits.window > 0 ? traits.window : token + 1;
  const size_t first = std::max(in_section, token + 1 - std::min(token + 1, window));
  const size_t last = token + std::min(traits.ahead, tokens_.size() - 1 - token);
  std::vector<double> query = values_[node.inputs[0]][token];
  move_all(query, roundings_.attention);
  const size_t value_dimension = node.value_dimension;
  std::vector<double> output(node.head_count * value_dimension);
  for (size_t head = 0; head < node.head_count; ++head) {
    const size_t at = head * dimension;
    const size_t kv_at = head / group * dimension;
    std::vector<double> scores;
    const double slope = slope_of(node, head);
    const double sink = traits.sinks == kNone ? -std::numeric_limits<double>::infinity()
                                              : double{weights_[traits.sinks][head]};
    double greatest = sink;
    for (size_t key = first; key <= last; ++key) {
      double score = 0;
      for (size_t i = 0; i < dimension; ++i) score += query[at + i] * keys[key][kv_at + i];
      score *= double{traits.scale};
      const double cap = traits.score_cap;
      if (cap != 0) score = moved(cap * std::tanh(score / cap), kFunction);
      scores.push_back(score -
                       slope * std::fabs(static_cast<double>(token) - static_cast<double>(key)));
      greatest = std::max(greatest, scores.back());
    }
    double sum = moved(std::exp(sink - greatest), kFunction);
    for (double& score : scores) {
      score = moved(std::exp(score - greatest), kFunction);
      sum += score;
    }
    for (size_t key = first; key <= last; ++key) {
      const double part = moved(scores[key - first] / sum, roundings_.attention);
      for (size_t i = 0; i < value_dimension; ++i) {
        output[head * value_dimension + i] +=
            part * values[key][head / group * value_dimension + i];
      }
    }
  }
  return output;
}

// Moves heads as far as storing them may.
void ReferenceWalk::store(ReferenceRows& rows, KvFormat format, size_t head_dimension) {
  const double stored = kv_error(format);
  for (auto& row : rows) {
    if (turns_heads(format)) turn(row, hadamard_dimensions(head_dimension));
    if (format == KvFormat::kQ8_0) move_blocks(row, kF16, 127);
    // The element opposite the farthest may be off by a whole step of 4 bits.
    if (format == KvFormat::kQ4_0 || format == KvFormat::kQ4H) move_blocks(row, kF16, 4);
    if (turns_heads(format)) turn(row, hadamard_dimensions(head_dimension));
    move_all(row, stored);
    if (roundings_.attention > stored) move_all(row, roundings_.attention);
  }
}

ReferenceRows ReferenceWalk::attend(const GraphNode& node) {
  const GraphNode& own = node.stored_by == kNone ? node : graph_.producer(node.stored_by);
  std::array<ReferenceRows, 2> cache = {
      values_[own.inputs[1]], has_values_in_keys(own) ? ReferenceRows() : values_[own.inputs[2]]};
  const KvFormats& format = roundings_.kv_format;
  store(cache[0], format.keys, own.head_dimension);
  store(cache[1], format.values, own.value_dimension);
  if (has_values_in_keys(own)) {
    for (const auto& key : cache[0]) {
      std::vector<double>& value = cache[1].emplace_back();
      for (size_t head = 0; head < own.kv_head_count; ++head) {
        const auto first = key.begin() + static_cast<ptrdiff_t>(head * own.head_dimension);
        value.insert(value.end(), first, first + static_cast<ptrdiff_t>(own.value_dimension));
      }
    }
  }
  ReferenceRows rows;
  for (size_t token = 0; token < tokens_.size(); ++token) {
    rows.push_back(attend_token(node, token, cache[0], cache[1]));
  }
  return rows;
}

// The norm of whole rows, or of each head, with one weight for all or for each.
ReferenceRows ReferenceWalk::norm(const GraphNode& node) {
  ReferenceRows rows = values_[node.inputs[0]];
  const bool of_heads = node.operation == Operation::kHeadNorm;
  const size_t size = of_heads ? node.head_dimension : rows.front().size();
  const std::vector<float> ones(size, 1.0F);
  const std::vector<float>& weight = node.weight == kNone ? ones : weights_[node.weight];
  const auto columns = static_cast<double>(size);
  const double error = node.subtracts_mean ? kFunction : kF32;
  for (auto& row : rows) {
    for (size_t begin = 0; begin < row.size(); begin += size) {
      double sum = 0;
      for (size_t i = begin; i < begin + size; ++i) sum += row[i];
      const double mean = node.subtracts_mean ? sum / columns : 0;
      double squares = 0;
      for (size_t i = begin; i < begin + size; ++i) squares += (row[i] - mean) * (row[i] - mean);
      const double factor = 1 / std::sqrt(squares / columns + double{node.epsilon});
      for (size_t i = begin; i < begin + size; ++i) {
        row[i] = moved((row[i] - mean) * factor * double{weight[i % weight.size()]}, error);
      }
    }
  }
  return rows;
}

ReferenceRows ReferenceWalk::rotate(const GraphNode& node) {
  const Rotary& rotary = graph_.rotaries()[node.rotary];
  const size_t pairs = rotary.frequencies.size();
  const bool halves = rotary.pairs == RotaryPairs::kHalves;
  ReferenceRows rows = values_[node.inputs[0]];
  for (size_t token = 0; token < rows.size(); ++token) {
    const auto position = static_cast<double>(token + rotary.offset);
    for (size_t head = 0; head < node.head_count; ++head) {
      double* const x = rows[token].data() + head * node.head_dimension;
      for (size_t pair = 0; pair < pairs; ++pair) {
        const double angle = moved(position * rotary.frequencies[pair], roundings_.angles);
        const double cosine = rotary.magnitude * std::cos(angle);
        const double sine = rotary.magnitude * std::sin(angle);
        double& a = x[halves ? pair : 2 * pair];
        double& b = x[halves ? pair + pairs : 2 * pair + 1];
        const double turned = a * cosine - b * sine;
        b = moved(a * sine + b * cosine, kF32);
        a = moved(turned, kF32);
      }
    }
  }
  return rows;
}

ReferenceRows ReferenceWalk::layer_norm(const GraphNode& node) {
  ReferenceRows rows = values_[node.inputs[0]];
  for (auto& row : rows) {
    const auto columns = static_cast<double>(row.size());
    const double mean = std::accumulate(row.begin(), row.end(), 0.0) / columns;
    double squares = 0;
    for (const double x : row) squares += (x - mean) * (x - mean);
    const double factor = 1 / std::sqrt(squares / columns + double{node.epsilon});
    for (size_t i = 0; i < row.size(); ++i) {
      const double weight = node.weight == kNone ? 1 : double{weights_[node.weight][i]};
      const double bias = node.bias == kNone ? 0 : double{weights_[node.bias][i]};
      row[i] = moved((row[i] - mean) * factor * weight, kFunction) + bias;
    }
  }
  return rows;
}

ReferenceRows ReferenceWalk::elementwise(const GraphNode& node) {
  const ReferenceRows& x = values_[node.inputs.front()];
  const ReferenceRows& y = values_[node.inputs.back()];
  const double scale = node.scale;
  ReferenceRows rows = x;
  for (size_t row = 0; row < rows.size(); ++row) {
    for (size_t i = 0; i < rows[row].size(); ++i) {
      double& out = rows[row][i];
      const double other = y[row][std::min(i, y[row].size() - 1)];
      switch (node.operation) {
        case Operation::kActivation:
          out = moved(activation_of(node.activation, out), kFunction);
          break;
        case Operation::kGate:
          out =
              moved(activation_of(node.activation, out), kFunction) * gated(node.activation, other);
          break;
        case Operation::kScaleRows:
          out = moved(activation_of(node.activation, y[row][0]), kFunction) * out;
          break;
        case Operation::kAdd:
          out = moved(out + other, kF32);
          break;
        case Operation::kTemperature:
          out =
              moved(out * factor_at(node.temperature, row / (rows.size() / tokens_.size())), kF32);
          break;
        case Operation::kScale:
          out = moved(scale * out, kF32);
          break;
        case Operation::kClamp:
          out = std::clamp(out, -scale, scale);
          break;
        default:
          out = moved(scale * std::tanh(out / scale), kFunction);
      }
    }
  }
  return rows;
}

// All rows are of one sequence, a text by itself.
ReferenceRows ReferenceWalk::mean(const GraphNode& node) {
  const ReferenceRows& x = values_[node.inputs[0]];
  std::vector<double> row(x.front().size());
  for (size_t column = 0; column < row.size(); ++column) {
    double sum = 0;
    for (const auto& each : x) sum += each[column];
    row[column] = moved(sum / static_cast<double>(x.size()), kF32);
  }
  return ReferenceRows(x.size(), row);
}

ReferenceRows ReferenceWalk::compute(const GraphNode& node) {
  switch (node.operation) {
    case Operation::kEmbed: {
      ReferenceRows rows;
      const size_t columns = graph_.columns(node.output);
      for (size_t index = 0; index < tokens_.size(); ++index) {
        const std::array<size_t, 3> places = {static_cast<size_t>(tokens_[index]), index, 0};
        const float* row =
            weights_[node.weight].data() + places[static_cast<size_t>(node.index)] * columns;
        rows.emplace_back(row, row + columns);
      }
      return rows;
    }
    case Operation::kGivenRows: {
      ReferenceRows rows;
      const auto columns = static_cast<ptrdiff_t>(graph_.columns(node.output));
      for (auto row = given_rows_.begin(); row != given_rows_.end(); row += columns) {
        rows.emplace_back(row, row + columns);
      }
      return rows;
    }
    case Operation::kRmsNorm:
    case Operation::kHeadNorm:
      return norm(node);
    case Operation::kMatmul:
      return matmul(node);
    case Operation::kHeadMatmul:
      return head_matmul(node);
    case Operation::kSliceHeads:
    case Operation::kJoinHeads:
      return copy_heads(node);
    case Operation::kRotary:
      return rotate(node);
    case Operation::kAttention:
      return attend(node);
    case Operation::kSelectRows:
      return values_[node.inputs[0]];
    case Operation::kMeanRows:
      return mean(node);
    case Operation::kExpertMatmul:
    case Operation::kExpertSum:
      return experts(node);
    case Operation::kRoute:
      for (const auto& scores : values_[node.inputs[0]]) {
        routings_[node.output].push_back(choose(node, scores));
      }
      return {};
    case Operation::kLayerNorm:
      return layer_norm(node);
    case Operation::kConvolution:
      return convolve(node);
    case Operation::kDeltaNet:
      return delta_net(node);
    case Operation::kScan:
      return scan(node);
    case Operation::kActivation:
    case Operation::kGate:
    case Operation::kAdd:
    case Operation::kScale:
    case Operation::kSoftCap:
    case Operation::kClamp:
    case Operation::kScaleRows:
    case Operation::kTemperature:
      return elementwise(node);
  }
  return {};
}

std::vector<ReferenceWalk::Choice> ReferenceWalk::choose(const GraphNode& node,
                                                         const std::vector<double>& scores) {
  const std::vector<float> none(scores.size());
  const auto choices = reference_choice(
      node.gating, scores, node.bias == kNone ? none : weights_[node.bias], node.chosen_count);
  std::vector<Choice> moved_choices;
  for (const auto& [expert, weight] : choices) {
    moved_choices.push_back({expert, moved(weight, kFunction)});
  }
  return moved_choices;
}

ReferenceRows ReferenceWalk::run() {
  for (const GraphNode& node : graph_.nodes()) values_[node.output] = compute(node);
  return values_[graph_.logits()];
}

const ReferenceRows& ReferenceWalk::hidden() const {
  ValueId value = graph_.logits();
  while (graph_.producer(value).operation != Operation::kMatmul) {
    if (graph_.producer(value).inputs.empty()) return values_[graph_.logits()];
    value = graph_.producer(value).inputs[0];
  }
  return values_[graph_.producer(value).inputs[0]];
}

}  // namespace lockstep
