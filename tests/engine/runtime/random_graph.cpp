#include "tests/engine/runtime/random_graph.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "engine/base/check.h"
#include "engine/kernels/gpu_tile.h"
#include "tests/engine/kernels/random_weights.h"
#include "tests/engine/model/gguf_writer.h"
#include "tests/engine/runtime/loaded_model.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/random_state_layers.h"
#include "tests/engine/runtime/reference_model.h"

namespace lockstep {
namespace {

constexpr size_t kVocabulary = kGraphVocabulary;
constexpr size_t kPositions = 520;
constexpr size_t kExperts = 6;
constexpr float kEpsilon = 1e-5F;

class GraphMaker {
 public:
  // `for_gpus`: without what these do not compute.
  explicit GraphMaker(uint64_t seed, bool for_gpus = false)
      : is_for_gpus_(for_gpus),
        random_(seed),
        matrices_(~seed),
        latents_(seed * 0x9e3779b97f4a7c15U),
        forms_(~(seed * 0x9e3779b97f4a7c15U)),
        given_(seed * 0xbf58476d1ce4e5b9U),
        states_(seed, graph_,
                {.matrix = [this](size_t rows, size_t columns) { return matrix(rows, columns); },
                 .vector = [this](const char* kind, size_t count) { return vector(kind, count); },
                 .width = [this](size_t columns) { return width(columns); }}) {}

  // An encoder: tokens see those behind them, too, positions and segments are looked up, norms
  // stand behind residuals, and rows or their means come out, or what a head makes of them.
  Graph make_encoder() {
    is_encoder_ = true;
    begin();
    ValueId x = graph_.embed(matrix(kVocabulary, columns_));
    x = graph_.add(x, graph_.embed(matrix(kPositions, columns_), EmbedIndex::kPosition));
    if (pick(2) == 0) {
      x = graph_.add(graph_.embed(matrix(2, columns_), EmbedIndex::kSegment), x);
    }
    x = norm(x);
    const size_t layers = has_large_blocks_ ? 1 : 1 + pick(3);
    const bool is_behind = pick(3) != 0;
    for (size_t layer = 0; layer < layers; ++layer) {
      if (!is_behind) {
        x = add_layer(x, layer);
        continue;
      }
      x = norm(graph_.add(x, attention(x, layer)));
      x = norm(graph_.add(x, feed_forward(x)));
    }
    x = pick_of_forms(2) == 0 ? graph_.mean_rows(x) : graph_.select_rows(x);
    switch (pick(4)) {
      case 0:
        graph_.set_logits(norm(x));
        break;
      case 1: {
        const ValueId y = product(x, columns_);
        graph_.set_logits(product(graph_.soft_cap(y, 1), pick(2) == 0 ? 1 : 3));
        break;
      }
      default:
        graph_.set_logits(x);
    }
    return std::move(graph_);
  }

  Graph make() {
    begin();
    const WeightId table = matrix(kVocabulary, columns_);
    ValueId x = graph_.embed(table);
    if (pick(3) == 0) x = graph_.scale(x, 2.5F);
    if (pick(4) == 0) x = norm(x);
    if (pick_of_given(4) == 0 && !is_for_gpus_) x = add_given_rows(x);
    const size_t layers = has_large_blocks_ ? 1 : 1 + pick(3);
    const ValueId embedded = pick_of_latents(4) == 0 ? embed_by_layer(x, layers) : kNone;
    for (size_t layer = 0; layer < layers; ++layer) {
      x = add_layer(x, layer);
      if (embedded != kNone) x = add_embedding(x, embedded, layer, layers);
    }
    // Selected before the last norm or behind it.
    const bool first = pick(3) != 0;
    if (first) x = graph_.select_rows(x);
    x = norm(x);
    if (!first) x = graph_.select_rows(x);
    ValueId logits = graph_.matmul(x, pick(2) == 0 ? table : matrix(kVocabulary, columns_));
    if (pick(4) == 0) logits = graph_.scale(logits, 0.5F);
    if (pick(4) == 0) logits = graph_.soft_cap(logits, 3.0F);
    if (pick(6) == 0) logits = temperature(logits);
    graph_.set_logits(logits);
    return std::move(graph_);
  }

 private:
  void begin() {
    columns_ = 32 * (2 + pick(3));
    dimension_ = 16 * (1 + pick(2));
    for (size_t tables = 1 + pick(2); tables > 0; --tables) add_rotary();
    formats_.fill(std::array{Format::kF32, Format::kQ8_0, Format::kF16, Format::kBf16}[pick(4)]);
    draw_formats();
  }

  void add_rotary() {
    const size_t pairs = pick(2) == 0 ? dimension_ / 2 : dimension_ / 4;
    Rotary rotary{.pairs = pick(2) == 0 ? RotaryPairs::kHalves : RotaryPairs::kInterleaved,
                  .frequencies = {}};
    const double base = pick(2) == 0 ? 100.0 : 9.0;
    for (size_t pair = 0; pair < pairs; ++pair) {
      rotary.frequencies.push_back(std::pow(base, -static_cast<double>(pair) / 8));
    }
    graph_.add_rotary(std::move(rotary));
  }

  size_t pick(size_t count) { return random_() % count; }
  // Draws formats, scales and widths: a draw of these changes no other.
  size_t pick_of_matrix(size_t count) { return matrices_() % count; }
  // Draws what heads are made of and embeddings of layers: likewise.
  size_t pick_of_latents(size_t count) { return latents_() % count; }
  // Draws forms of operations that few models have: likewise.
  size_t pick_of_forms(size_t count) { return forms_() % count; }
  // Draws what is made of given rows: likewise.
  size_t pick_of_given(size_t count) { return given_() % count; }

  static bool has_large_blocks(Format format) { return traits(format).block_elements == 256; }

  // Half of the graphs are in one of the usual formats, half in two of all. Graphs with blocks of
  // 256 have rows that hold them.
  void draw_formats() {
    if (pick_of_matrix(2) == 0) return;
    for (Format& format : formats_) {
      do {
        format = all_formats()[pick_of_matrix(kFormatCount)].format;
      } while (is_for_gpus_ && !has_gpu_kernels(format));
    }
    has_large_blocks_ = std::ranges::any_of(formats_, has_large_blocks);
    if (has_large_blocks_) columns_ = 256;
  }
  // The width of a hidden layer.
  size_t width(size_t columns) {
    return has_large_blocks_ ? 256 * (1 + pick_of_matrix(2)) : columns;
  }

  Format format_of_rows(size_t columns) {
    const Format format = formats_[pick_of_matrix(4) == 0 ? 1 : 0];
    return columns % traits(format).block_elements == 0 ? format : Format::kQ8_0;
  }
  WeightId matrix(size_t rows, size_t columns, Format format) {
    const float scale =
        pick_of_matrix(4) == 0 ? std::array{0.6F, -1.7F, 1.3F}[pick_of_matrix(3)] : 1.0F;
    return graph_.add_matrix(fmt::format("matrix.{}", graph_.weights().size()), format, rows,
                             columns, 0, scale);
  }
  WeightId matrix(size_t rows, size_t columns) {
    return matrix(rows, columns, format_of_rows(columns));
  }
  WeightId vector(const char* kind, size_t count) {
    return graph_.add_vector(fmt::format("{}.{}", kind, graph_.weights().size()), Format::kF32,
                             count);
  }

  ValueId product(ValueId x, size_t rows) {
    const WeightId bias = pick(3) == 0 ? vector("bias", rows) : kNone;
    return graph_.matmul(x, matrix(rows, graph_.columns(x)), bias);
  }

  ValueId norm(ValueId x) {
    const size_t columns = graph_.columns(x);
    switch (pick(5)) {
      case 0:
        return graph_.layer_norm(x, vector("norm", columns), vector("bias", columns), kEpsilon);
      case 1:
        return graph_.layer_norm(x, pick(2) == 0 ? vector("norm", columns) : kNone, kNone,
                                 kEpsilon);
      case 2:
        return graph_.rms_norm(x, kNone, kEpsilon);
      default:
        return graph_.rms_norm(x, vector("norm", columns), kEpsilon);
    }
  }

  // A product of rows that come with tokens, by themselves or beside the embedding, is added.
  ValueId add_given_rows(ValueId x) {
    const size_t columns = has_large_blocks_ ? 256 : 32 * (1 + pick_of_given(3));
    ValueId rows = graph_.given_rows(columns);
    if (pick_of_given(2) == 0) rows = graph_.rms_norm(rows, vector("norm", columns), kEpsilon);
    if (pick_of_given(2) == 0) rows = graph_.join_heads(rows, 1, x, 1);
    const size_t joined = graph_.columns(rows);
    const bool fits = joined % traits(formats_[0]).block_elements == 0;
    const WeightId weight = graph_.add_matrix(fmt::format("matrix.{}", graph_.weights().size()),
                                              fits ? formats_[0] : Format::kQ8_0, columns_, joined);
    return graph_.add(x, graph_.matmul(rows, weight));
  }

  // A layer's heads.
  struct Heads {
    size_t count = 6;
    size_t kv_count = 3;
    size_t dimension = 16;
    size_t value_dimension = 16;
  };
  Heads any_heads() {
    // The last has a group that attention takes in parts.
    const std::array<Heads, 5> choices = {
        {{6, 3}, {6, 3}, {4, 2}, {4, 1}, {2 * kMaxQueryGroup + 2, 1}}};
    Heads heads = choices[pick(9) / 2];
    heads.dimension = dimension_ * (pick(4) == 0 ? 2 : 1);
    heads.value_dimension = pick(4) == 0 ? 48 : heads.dimension;
    return heads;
  }

  ValueId temperature(ValueId x) {
    return graph_.temperature(x, {.scale = 0.3F, .tokens = 1 + pick(6), .offset = pick(2)});
  }

  AttentionTraits attention_traits(size_t heads) {
    AttentionTraits traits{.scale = 0.25F};
    traits.window = std::array<size_t, 5>{0, 0, 0, 9, 70}[pick(5)];
    if (pick(4) == 0) traits.section = pick(2) == 0 ? 7 : 100;
    if (pick(4) == 0) traits.score_cap = 1.5F;
    if (pick(4) == 0) traits.alibi_bias = 8;
    if (pick(4) == 0) traits.sinks = vector("sinks", heads);
    if (is_encoder_) traits.ahead = pick(3) == 0 ? 1 + pick(8) : kAllAhead;
    return traits;
  }

  // A norm of whole rows or of heads, and positions, in any order.
  ValueId treat(ValueId x, size_t heads, size_t how, size_t rotary) {
    const auto head_norm = [&] {
      switch (pick(5)) {
        case 0:
          return graph_.head_norm(x, kNone, kEpsilon, heads);
        case 1:
          return graph_.l2_norm(x, kEpsilon, pick(2) == 0 ? heads : 1);
        default: {
          const bool is_own = pick_of_forms(4) == 0;
          const WeightId weight = vector("norm", graph_.columns(x) / (is_own ? 1 : heads));
          return pick_of_forms(4) == 0 ? graph_.head_layer_norm(x, weight, kEpsilon, heads)
                                       : graph_.head_norm(x, weight, kEpsilon, heads);
        }
      }
    };
    if (how == 1) x = head_norm();
    if (how == 2) x = norm(x);
    if (how != 3) x = graph_.rotary(x, heads, rotary);
    if (how == 4) x = head_norm();
    return x;
  }

  // Over keys and values of its own, or of an earlier layer's.
  ValueId attend(ValueId h, size_t layer) {
    const bool is_stored = stored_.has_value() && pick(3) == 0;
    if (!is_stored) stored_ = Stored{any_heads(), {}, kNone};
    const auto [heads, kv_heads, dimension, value_dimension] = stored_->heads;
    const size_t how = pick(6);
    const size_t other = pick(5) == 0 ? pick(6) : how;
    const size_t rotary = pick(graph_.rotaries().size());
    const bool clamps = pick_of_forms(5) == 0;
    const auto input = [&](size_t columns) {
      const ValueId x = product(h, columns);
      return clamps ? graph_.clamp(x, 0.9F) : x;
    };
    ValueId q = input(heads * dimension);
    if (pick(6) == 0) q = temperature(q);
    q = treat(q, heads, how, rotary);
    if (pick(6) == 0) q = temperature(q);
    AttentionTraits traits = attention_traits(heads);
    if (is_stored) {
      traits.window = stored_->traits.window;
      traits.section = stored_->traits.section;
      traits.ahead = stored_->traits.ahead;
      return graph_.attention_over(layer, stored_->attended, q, traits);
    }
    const ValueId key = input(kv_heads * dimension);
    const bool is_key = value_dimension == dimension && pick(5) == 0;
    const ValueId k = treat(key, kv_heads, other, rotary);
    ValueId v = is_key ? key : input(kv_heads * value_dimension);
    if (pick_of_forms(5) == 0) v = graph_.head_norm(v, kNone, kEpsilon, kv_heads);
    stored_->traits = traits;
    stored_->attended = graph_.attention(layer, q, k, v, heads, kv_heads, traits);
    return stored_->attended;
  }

  // Multi-head latent attention: keys and values of a latent that all heads share. In the cache the
  // latent stands itself, or what each head makes of it.
  ValueId attend_latents(ValueId h, size_t layer) {
    const size_t heads = std::array<size_t, 3>{4, 6, 5}[pick_of_latents(3)];
    const size_t own = 32 * (1 + pick_of_latents(2));
    const size_t rope = dimension_;
    const size_t latent = has_large_blocks_ ? 256 : 32 * (1 + pick_of_latents(3));
    const size_t value = 32 * (1 + pick_of_latents(2));
    const size_t rotary = pick_of_latents(graph_.rotaries().size());
    const ValueId narrow = pick_of_latents(2) == 0 ? norm(product(h, width(64))) : h;
    const ValueId q = product(narrow, heads * (own + rope));
    const ValueId q_own = graph_.slice_heads(q, heads, 0, own);
    const ValueId q_rope = graph_.rotary(graph_.slice_heads(q, heads, own, rope), heads, rotary);
    const ValueId kv = product(h, latent + rope);
    const ValueId c = norm(graph_.slice_heads(kv, 1, 0, latent));
    const ValueId k_rope = graph_.rotary(graph_.slice_heads(kv, 1, latent, rope), 1, rotary);
    const AttentionTraits traits = attention_traits(heads);
    if (pick_of_latents(3) == 0) {
      const ValueId all = product(c, heads * (own + value));
      const ValueId k = graph_.join_heads(graph_.slice_heads(all, heads, 0, own), heads, k_rope, 1);
      const ValueId v = graph_.slice_heads(all, heads, own, value);
      return graph_.attention(layer, graph_.join_heads(q_own, heads, q_rope, heads), k, v, heads,
                              heads, traits);
    }
    const ValueId q_latent = graph_.head_matmul(q_own, matrix(heads * latent, own), heads);
    stored_ = Stored{{heads, 1, latent + rope, latent}, traits, kNone};
    stored_->attended =
        graph_.latent_attention(layer, graph_.join_heads(q_latent, heads, q_rope, heads),
                                graph_.join_heads(c, 1, k_rope, 1), heads, 1, latent, traits);
    return graph_.head_matmul(stored_->attended, matrix(heads * value, latent), heads);
  }

  // A second table, of which each layer reads some columns; a product of the embedding is added.
  ValueId embed_by_layer(ValueId x, size_t layers) {
    const size_t columns = layers * layer_columns();
    const ValueId embedded = graph_.embed(matrix(kVocabulary, columns));
    if (pick_of_latents(2) == 0) return embedded;
    const ValueId made = graph_.head_norm(product(x, columns), kNone, kEpsilon, layers);
    return graph_.scale(graph_.add(made, embedded), 0.7F);
  }
  ValueId add_embedding(ValueId x, ValueId embedded, size_t layer, size_t layers) {
    const size_t columns = layer_columns();
    CHECK(graph_.columns(embedded) == layers * columns, "an embedding of other layers");
    const ValueId own = graph_.slice_heads(embedded, 1, layer * columns, columns);
    const ValueId gate = product(x, columns);
    return graph_.add(x,
                      norm(product(graph_.gate(ActivationFunction::kGelu, gate, own), columns_)));
  }
  size_t layer_columns() const { return has_large_blocks_ ? 256 : 64; }

  ValueId attention(ValueId h, size_t layer) {
    const bool has_states = !is_encoder_ && !is_for_gpus_;
    const bool convolves = has_states && states_.picks_convolution();
    const ValueId y = attention_alone(h, layer);
    return has_states ? states_.add_beside(y, h, convolves, has_large_blocks_) : y;
  }

  ValueId attention_alone(ValueId h, size_t layer) {
    const bool has_latents = !is_for_gpus_ && pick_of_latents(3) == 0;
    const ValueId attended = has_latents ? attend_latents(h, layer) : attend(h, layer);
    if (pick(5) == 0) {
      const ValueId open = product(h, graph_.columns(attended));
      return product(graph_.gate(ActivationFunction::kGeluQuick, open, attended), columns_);
    }
    return product(attended, columns_);
  }

  Activation any_activation() {
    const auto function = static_cast<ActivationFunction>(pick(kActivationFunctionCount));
    if (function == ActivationFunction::kXielu) return {function, {0.8F, 1.3F, 0.5F, -1e-6F}};
    if (function == ActivationFunction::kClippedSwiglu) return {function, {1.702F, 1.5F}};
    return function;
  }

  // Rounding chooses no expert: a token goes to all of them, or biases choose that are further
  // apart than values are.
  ValueId route(ValueId scores) {
    Gating gating{.function = static_cast<GatingFunction>(pick(4)),
                  .is_normalized = pick(2) == 0,
                  .scale = pick(2) == 0 ? 1 : 1.7F,
                  .weighs_inputs = pick_of_forms(4) == 0};
    if (pick(2) == 0) return graph_.route(scores, kExperts, gating);
    if (pick(2) == 0) {
      gating.group_count = pick(2) == 0 ? 2 : 3;
      gating.chosen_groups = gating.group_count - 1;
      gating.group_values = 1 + pick_of_latents(2);
    }
    return graph_.route(scores, 1 + pick(3), gating, vector("choice", kExperts));
  }

  ValueId mixture(ValueId h) {
    const auto experts = [&](size_t rows, size_t columns) {
      const Format format = format_of_rows(columns);
      const size_t sharing = std::array<size_t, 5>{1, 1, 1, 2, kExperts}[pick_of_matrix(5)];
      std::vector<WeightId> ids(kExperts);
      for (size_t expert = 0; expert < kExperts; ++expert) {
        ids[expert] = expert % sharing == 0 ? matrix(rows, columns, format) : ids[expert - 1];
      }
      return ids;
    };
    const bool has_biases = pick(2) == 0;
    const auto biases = [&](size_t rows) {
      std::vector<WeightId> ids(has_biases ? kExperts : 0);
      for (WeightId& id : ids) id = vector("bias", rows);
      return ids;
    };
    const size_t wide = width(96);
    // The router may read something else than the experts, and its scores may be scaled.
    ValueId scores = product(pick_of_forms(4) == 0 ? norm(h) : h, kExperts);
    if (pick_of_forms(4) == 0) scores = graph_.scale(scores, 0.7F);
    const ValueId routing = route(scores);
    ValueId y = graph_.expert_matmul(h, routing, experts(wide, columns_), biases(wide));
    if (pick(4) == 0) {
      y = graph_.activation(any_activation(), y);
    } else {
      ValueId up = graph_.expert_matmul(h, routing, experts(wide, columns_), biases(wide));
      if (pick(4) == 0) up = temperature(up);
      y = graph_.gate(any_activation(), y, up);
    }
    return graph_.expert_sum(y, routing, experts(columns_, wide), biases(columns_));
  }

  // By factors far from 0: a norm behind them would give a rounding that changes one's sign.
  ValueId scale_rows(ValueId h, ValueId x) {
    return graph_.scale_rows(ActivationFunction::kSigmoid, product(h, 1), x);
  }

  // Experts, and what every token goes to beside them.
  ValueId mixture_beside(ValueId h) {
    const size_t wide = width(64);
    const ValueId gate = product(h, wide);
    ValueId shared = product(graph_.gate(any_activation(), gate, product(h, wide)), columns_);
    if (pick(2) == 0) shared = scale_rows(h, shared);
    if (pick(3) == 0) shared = norm(shared);
    const ValueId experts = mixture(pick(3) == 0 ? norm(h) : h);
    return pick(2) == 0 ? graph_.add(shared, experts) : graph_.add(experts, shared);
  }

  ValueId feed_forward(ValueId h) {
    const size_t wide = width(32 * (2 + pick(3)));
    switch (pick(7)) {
      case 0:
        return mixture(h);
      case 5:
        return mixture_beside(h);
      case 6: {  // rows scaled before the last product
        const ValueId y = graph_.activation(any_activation(), product(h, wide));
        return product(scale_rows(h, y), columns_);
      }
      case 1:
        return product(graph_.activation(any_activation(), product(h, wide)), columns_);
      case 2:  // of low rank, without an activation
        return product(product(h, width(64)), columns_);
      case 3: {  // a gate of what is no product
        const ValueId up = product(h, wide);
        const ValueId gate = graph_.scale(product(h, wide), 0.7F);
        return product(graph_.gate(any_activation(), gate, up), columns_);
      }
      default: {
        const ValueId gate = product(h, wide);
        const ValueId up = product(h, wide);
        return product(graph_.gate(any_activation(), gate, up), columns_);
      }
    }
  }

  // The end of a part of a layer, before the residual.
  ValueId finish(ValueId y) {
    if (pick_of_forms(8) == 0) y = graph_.clamp(y, 1.5F);
    if (pick(4) == 0) y = norm(y);
    if (pick(4) == 0) y = graph_.scale(y, 0.8F);
    if (pick(6) == 0) y = temperature(y);
    return y;
  }

  ValueId add_layer(ValueId x, size_t layer) {
    const ValueId h = norm(x);
    if (pick(3) == 0) {  // both parts beside one another
      const ValueId attended = finish(attention(h, layer));
      const ValueId fed = finish(feed_forward(pick(2) == 0 ? h : norm(x)));
      return pick(2) == 0 ? graph_.add(graph_.add(x, attended), fed)
                          : graph_.add(x, graph_.add(attended, fed));
    }
    x = graph_.add(x, finish(attention(h, layer)));
    return graph_.add(x, finish(feed_forward(norm(x))));
  }

  // The last attention that has stored keys and values.
  struct Stored {
    Heads heads;
    AttentionTraits traits;
    ValueId attended = kNone;
  };

  const bool is_for_gpus_;
  std::mt19937_64 random_;
  std::mt19937_64 matrices_;
  std::mt19937_64 latents_;
  std::mt19937_64 forms_;
  std::mt19937_64 given_;
  Graph graph_;
  RandomStateLayers states_;
  std::optional<Stored> stored_;
  std::array<Format, 2> formats_ = {};
  bool has_large_blocks_ = false;
  bool is_encoder_ = false;
  size_t columns_ = 0;
  size_t dimension_ = 0;
};

}  // namespace

Graph random_graph(uint64_t seed) {
  return GraphMaker(seed).make();
}

Graph random_gpu_graph(uint64_t seed) {
  return GraphMaker(seed, /*for_gpus=*/true).make();
}

Graph random_gpu_encoder(uint64_t seed) {
  return GraphMaker(seed, /*for_gpus=*/true).make_encoder();
}

Graph random_encoder(uint64_t seed) {
  return GraphMaker(seed).make_encoder();
}

}  // namespace lockstep
