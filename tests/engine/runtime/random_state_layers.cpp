#include "tests/engine/runtime/random_state_layers.h"

namespace lockstep {
namespace {

constexpr float kEpsilon = 1e-5F;

}  // namespace

// A convolution of products, gated by others or not, or of what is none.
ValueId RandomStateLayers::convolution(ValueId h) {
  const size_t wide = weights_.width(32 * (2 + pick_of_states(3)));
  const ValueId x = pick_of_states(4) == 0 ? h : product(h, wide);
  const size_t columns = graph_.columns(x);
  const size_t taps = std::array<size_t, 4>{2, 3, 4, kMostTaps}[pick_of_states(4)];
  const WeightId factors = vector("factors", columns * taps);
  const WeightId bias = pick_of_states(2) == 0 ? vector("bias", columns) : kNone;
  if (pick_of_states(2) == 0) {
    return product(graph_.convolve(x, factors, bias), graph_.columns(h));
  }
  const ValueId before = product(h, columns);
  const ValueId behind = product(h, columns);
  return product(graph_.convolve_gated(x, before, behind, factors, bias), graph_.columns(h));
}

// Its inputs are products that are convolved or not, and then activated or not; values may be cut
// within a key head's. Each row of its states may have a decay of its own. What it gives is normed
// and gated in most graphs.
ValueId RandomStateLayers::delta_net(ValueId h) {
  const DeltaShape shape = {.value_heads = 2 * (1 + pick_of_states(3)),
                            .key_heads = 1 + pick_of_states(2),
                            .is_tiled = pick_of_states(2) == 0,
                            .epsilon = kEpsilon};
  const size_t dimension = std::array<size_t, 3>{16, 32, 80}[pick_of_states(3)];
  const size_t wide = shape.value_heads * 32 * (has_large_blocks_ ? 8 : 1 + pick_of_states(3));
  const auto input = [&](size_t columns) {
    const ValueId x = product(h, columns);
    if (pick_of_states(3) == 0) return x;
    const ValueId y = graph_.convolve(x, vector("factors", columns * 4));
    return pick_of_states(3) == 0 ? y : graph_.activation(ActivationFunction::kSilu, y);
  };
  const ValueId q = input(shape.key_heads * dimension);
  const ValueId k = input(shape.key_heads * dimension);
  const ValueId v = input(wide);
  const auto [beta, alpha] = head_factors(h, shape, pick_of_decays(2) == 0 ? dimension : size_t{1});
  const bool is_normed = pick_of_states(4) != 0;
  const bool is_gated = is_normed && pick_of_states(4) != 0;
  // The product that gates the results may come before them.
  const bool is_early = pick_of_decays(3) == 0;
  const ValueId early = is_gated && is_early ? product(product(h, wide), wide) : kNone;
  const ValueId y = graph_.delta_net(v, q, k, beta, alpha, vector("decay", shape.value_heads),
                                     vector("bias", graph_.columns(alpha)), shape);
  if (!is_normed) return product(y, graph_.columns(h));
  const WeightId weight = vector("norm", wide / shape.value_heads);
  const ValueId normed = graph_.head_norm(y, weight, kEpsilon, shape.value_heads);
  if (!is_gated) return product(normed, graph_.columns(h));
  const ValueId open = early == kNone ? product(h, wide) : early;
  return product(graph_.gate(ActivationFunction::kSilu, open, normed), graph_.columns(h));
}

// Beta and alpha: two products, or for each key head a part of one's columns.
std::array<ValueId, 2> RandomStateLayers::head_factors(ValueId h, const DeltaShape& shape,
                                                       size_t decays) {
  if (pick_of_states(2) == 0) {
    const ValueId beta = product(h, shape.value_heads);
    const bool is_narrow = decays > 1 && pick_of_decays(2) == 0;
    const ValueId read = is_narrow ? product(h, weights_.width(32)) : h;
    return {beta, product(read, shape.value_heads * decays)};
  }
  const size_t each = shape.value_heads / shape.key_heads;
  const ValueId both = product(h, (1 + decays) * shape.value_heads);
  const ValueId beta = graph_.slice_heads(both, shape.key_heads, 0, each);
  return {beta, graph_.slice_heads(both, shape.key_heads, each, each * decays)};
}

// Its inputs are products that are convolved or not. What it gives is gated in most graphs, and
// normed as a whole or by groups.
ValueId RandomStateLayers::scan(ValueId h) {
  const DeltaShape shape = {.value_heads = 4 * (1 + pick_of_scans(3)),
                            .key_heads = size_t{1} << pick_of_scans(3)};
  const size_t dimension = std::array<size_t, 3>{16, 31, 80}[pick_of_scans(3)];
  const size_t each =
      has_large_blocks_ ? 64 : std::array<size_t, 4>{8, 32, 48, 80}[pick_of_scans(4)];
  const size_t wide = shape.value_heads * each;
  const auto input = [&](size_t columns) {
    const ValueId x = product(h, columns);
    if (pick_of_scans(3) == 0) return x;
    const WeightId bias = pick_of_scans(2) == 0 ? vector("bias", columns) : kNone;
    return graph_.activation(ActivationFunction::kSilu,
                             graph_.convolve(x, vector("factors", columns * 4), bias));
  };
  const ValueId x = input(wide);
  const ValueId c = input(shape.key_heads * dimension);
  const ValueId b = input(shape.key_heads * dimension);
  const auto factors = [&](const char* kind) { return vector(kind, shape.value_heads); };
  const ValueId steps = product(h, shape.value_heads);
  ValueId y =
      graph_.scan(x, c, b, steps, factors("decay"), factors("bias"), factors("skip"), shape);
  if (pick_of_scans(4) != 0) {
    y = graph_.gate(ActivationFunction::kSilu, product(h, wide), y);
  }
  if (pick_of_scans(3) != 0) {
    const WeightId weight = vector("norm", wide);
    y = shape.key_heads == 1 ? graph_.rms_norm(y, weight, kEpsilon)
                             : graph_.head_norm(y, weight, kEpsilon, shape.key_heads);
  }
  return product(y, graph_.columns(h));
}

// Heads of one column each, whose rows decay by themselves or together. Steps, b and c are products
// of what is scanned, normed or not.
ValueId RandomStateLayers::scan_columns(ValueId h) {
  const size_t wide = has_large_blocks_ ? 256 : 32 * (1 + pick_of_columns(4));
  const size_t dimension = std::array<size_t, 3>{4, 16, 31}[pick_of_columns(3)];
  ValueId x = product(h, wide);
  if (pick_of_columns(3) != 0) {
    const ValueId sums = graph_.convolve(x, vector("factors", wide * 4), vector("bias", wide));
    x = graph_.activation(ActivationFunction::kSilu, sums);
  }
  const bool is_normed = pick_of_columns(2) == 0;
  const auto made = [&](size_t columns) {
    const ValueId y = product(x, columns);
    return is_normed ? graph_.rms_norm(y, vector("norm", columns), kEpsilon) : y;
  };
  const ValueId steps = product(made(has_large_blocks_ ? 256 : 32), wide);
  const ValueId b = made(dimension);
  const ValueId c = made(dimension);
  const size_t decays = pick_of_columns(4) == 0 ? 1 : dimension;
  ValueId y = graph_.scan(x, c, b, steps, vector("decay", wide * decays), vector("bias", wide),
                          vector("skip", wide), {.value_heads = wide, .key_heads = 1});
  if (pick_of_columns(4) != 0) y = graph_.gate(ActivationFunction::kSilu, product(h, wide), y);
  return product(y, graph_.columns(h));
}

ValueId RandomStateLayers::add_beside(ValueId y, ValueId h, bool convolves, bool large_blocks) {
  has_large_blocks_ = large_blocks;
  if (convolves) y = graph_.add(y, convolution(h));
  if (pick_of_states(4) == 0) y = graph_.add(y, delta_net(h));
  if (pick_of_scans(4) == 0) y = graph_.add(y, scan(h));
  if (pick_of_columns(4) == 0) y = graph_.add(y, scan_columns(h));
  return y;
}

}  // namespace lockstep
