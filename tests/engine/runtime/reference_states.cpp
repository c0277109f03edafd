// Layers with a state, by their definitions: each token from those before it.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/engine/runtime/reference_walk.h"

namespace lockstep {
namespace {

const double kF32 = std::ldexp(1.0, -24);  // half a unit in the last place, at most
const double kFunction = std::ldexp(1.0, -20);

}  // namespace

// The definition, token by token: no state.
ReferenceRows ReferenceWalk::convolve(const GraphNode& node) {
  const bool is_gated = node.inputs.size() > 1;
  const std::vector<float>& factors = weights_[node.weight];
  ReferenceRows inputs = values_[node.inputs[0]];
  for (size_t token = 0; is_gated && token < inputs.size(); ++token) {
    const std::vector<double>& before = values_[node.inputs[1]][token];
    for (size_t column = 0; column < before.size(); ++column) {
      inputs[token][column] = moved(inputs[token][column] * before[column], kF32);
    }
  }
  ReferenceRows rows;
  for (size_t token = 0; token < inputs.size(); ++token) {
    std::vector<double>& row = rows.emplace_back(inputs[token].size());
    for (size_t column = 0; column < row.size(); ++column) {
      double sum = node.bias == kNone ? 0 : double{weights_[node.bias][column]};
      double magnitude = std::abs(sum);
      for (size_t back = 0; back < std::min(node.taps, token + 1); ++back) {
        const double factor = factors[column * node.taps + node.taps - 1 - back];
        const double term = factor * inputs[token - back][column];
        sum += term;
        magnitude += std::abs(term);
      }
      if (draw_ != 0) sum += magnitude * kF32 * static_cast<double>(node.taps) * random();
      row[column] = is_gated ? moved(sum * values_[node.inputs[2]][token][column], kF32) : sum;
    }
  }
  return rows;
}

// One token of a head: by the definition, the state a matrix [dimension][values].
std::vector<double> ReferenceWalk::delta_head(const GraphNode& node, size_t head, size_t token,
                                              std::vector<double>& state) {
  const size_t dimension = node.head_dimension;
  const size_t columns = node.value_dimension;
  const auto of = [&](size_t input, size_t place) {
    return values_[node.inputs[input]][token].begin() + static_cast<ptrdiff_t>(place);
  };
  const auto key_at = node.delta.key_head(head) * dimension;
  std::vector<double> q(of(1, key_at), of(1, key_at + dimension));
  std::vector<double> k(of(2, key_at), of(2, key_at + dimension));
  for (std::vector<double>* each : {&q, &k}) {
    double squares = node.delta.epsilon;
    for (const double x : *each) squares += x * x;
    const double root = each == &q ? std::sqrt(static_cast<double>(dimension)) : 1;
    for (double& x : *each) x = moved(x / std::sqrt(squares) / root, kFunction);
  }
  std::vector<double> decays(dimension);  // by row of the state, which may have one for all
  for (size_t i = 0; i < dimension; ++i) {
    const size_t place = head * node.decay_count + i;
    const double raw = *of(4, place) + double{weights_[node.bias][place]};
    const double rate = double{weights_[node.weight][head]};
    decays[i] = moved(std::exp(rate * std::log1p(std::exp(raw))), kFunction);
    if (node.decay_count > 1) continue;
    std::ranges::fill(decays, decays[0]);
    break;
  }
  const double beta = moved(1 / (1 + std::exp(-*of(3, head))), kFunction);
  const double error = kF32 * std::sqrt(static_cast<double>(dimension));
  std::vector<double> output(columns);
  for (size_t column = 0; column < columns; ++column) {
    double kept = 0;
    for (size_t i = 0; i < dimension; ++i) {
      kept += k[i] * decays[i] * moved(state[i * columns + column], error);
    }
    const double change = beta * moved(*of(0, head * columns + column) - kept, kF32);
    for (size_t i = 0; i < dimension; ++i) {
      double& cell = state[i * columns + column];
      cell = moved(decays[i] * cell + k[i] * change, kF32);
      output[column] += q[i] * moved(cell, error);
    }
  }
  return output;
}

ReferenceRows ReferenceWalk::delta_net(const GraphNode& node) {
  const size_t columns = node.value_dimension;
  ReferenceRows rows(tokens_.size());
  for (size_t head = 0; head < node.head_count; ++head) {
    std::vector<double> state(node.head_dimension * columns);
    for (size_t token = 0; token < tokens_.size(); ++token) {
      const std::vector<double> output = delta_head(node, head, token, state);
      rows[token].insert(rows[token].end(), output.begin(), output.end());
    }
  }
  return rows;
}

// By the definition, head by head.
ReferenceRows ReferenceWalk::scan(const GraphNode& node) {
  const size_t dimension = node.head_dimension;
  const size_t columns = node.value_dimension;
  const double error = kF32 * std::sqrt(static_cast<double>(dimension));
  ReferenceRows rows(tokens_.size(), std::vector<double>(node.head_count * columns));
  for (size_t head = 0; head < node.head_count; ++head) {
    const size_t group = node.delta.key_head(head) * dimension;
    std::vector<double> state(dimension * columns);
    for (size_t token = 0; token < tokens_.size(); ++token) {
      const auto of = [&](size_t input, size_t place) {
        return values_[node.inputs[input]][token][place];
      };
      const double raw = of(3, head) + double{weights_[node.bias][head]};
      const double step = moved(std::log1p(std::exp(raw)), kFunction);
      std::vector<double> decays(dimension);
      for (size_t i = 0; i < dimension; ++i) {
        const size_t row = node.decay_count == 1 ? 0 : i;
        const double power = weights_[node.weight][head * node.decay_count + row] * step;
        decays[i] = moved(std::exp(power), kFunction + 2 * kF32 * std::abs(power));
      }
      for (size_t column = 0; column < columns; ++column) {
        const double x = of(0, head * columns + column);
        double& output = rows[token][head * columns + column];
        output = double{weights_[node.skip][head]} * x;
        for (size_t i = 0; i < dimension; ++i) {
          double& cell = state[i * columns + column];
          cell = moved(decays[i] * cell + of(2, group + i) * step * x, kF32);
          output += of(1, group + i) * moved(cell, error);
        }
      }
    }
  }
  return rows;
}

}  // namespace lockstep
