#include "tests/engine/kernels/attention_bf16_model.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <limits>
#include <span>

#include "engine/base/checked_math.h"
#include "engine/kernels/attention.h"
#include "engine/tensor/format.h"
#include "tests/engine/kernels/bf16_model.h"

namespace lockstep {
namespace {

constexpr size_t kLanes = 16;
constexpr size_t kBlock = 32;  // what a product of tiles sums over

float to_bf16(double value) {
  return bf16_to_float(float_to_bf16(static_cast<float>(value)));
}

float flushed(double value) {
  const auto rounded = static_cast<float>(value);
  return std::abs(rounded) < FLT_MIN ? std::copysign(0.0F, rounded) : rounded;
}

// sum + the product of `first` and `second`, whose sizes are whole blocks.
float add_product(std::span<const float> first, std::span<const float> second, float sum) {
  for (size_t block = 0; block < first.size(); block += kBlock) {
    float even = 0;
    float odd = 0;
    for (size_t k = block; k < block + kBlock; k += 2) {
      even = model_fma(first[k], second[k], even);
      odd = model_fma(first[k + 1], second[k + 1], odd);
    }
    sum = model_add(sum, model_add(even, odd));
  }
  return sum;
}

// exponential() of cpu/exponential.inl.h.
float model_exponential(float x) {
  if (std::isnan(x)) return x;
  if (x > 88.375F) return std::numeric_limits<float>::infinity();
  if (x < -87.3365402F) return 0.0F;
  const float n = std::nearbyint(x * 0x1.715476p+0F);
  const float r = std::fma(n, 0x1.05c610p-29F, std::fma(n, -0x1.62e430p-1F, x));
  float result = std::fma(0x1.6f7cdep-10F, r, 0x1.122482p-7F);
  for (const float coefficient : {0x1.55533cp-5F, 0x1.5554b2p-3F, 0.5F, 1.0F, 1.0F}) {
    result = std::fma(result, r, coefficient);
  }
  return std::ldexp(result, static_cast<int>(n));
}

// a - floor(a), rounded down.
float fraction(float a) {
  const double whole = std::floor(static_cast<double>(a));
  const double difference = static_cast<double>(a) - whole;
  const auto nearest = static_cast<float>(difference);
  // The difference is not exact in double where it rounds to 1.
  const bool above = static_cast<double>(nearest) > difference || (nearest == 1.0F);
  return above ? std::nextafter(nearest, 0.0F) : nearest;
}

float probability(float x) {
  if (std::isnan(x)) return x;
  if (x < -1000.0F) return 0.0F;
  const float r = fraction(x);
  float c = std::fma(kBf16PowerCubic, r, kBf16PowerSquare);
  c = std::fma(c, r, kBf16PowerLinear);
  c = std::fma(c, r, kBf16PowerRounding + 1.0F) - kBf16PowerRounding;
  return flushed(std::ldexp(static_cast<double>(c), static_cast<int>(std::floor(x))));
}

// hyperbolic_tangent() of cpu/activations.inl.h.
float model_tangent(float x) {
  if (std::isnan(x)) return x;
  const float size = std::fabs(x);
  if (size < 0.625F) {
    const float square = model_multiply(x, x);
    float series = -0x1.75e17ap-8F;
    for (const float coefficient :
         {0x1.522686p-6F, -0x1.b83c56p-5F, 0x1.110726p-3F, -0x1.555532p-2F}) {
      series = model_fma(series, square, coefficient);
    }
    return model_fma(model_multiply(series, square), x, x);
  }
  const float power = model_exponential(model_add(size, size));
  const float far = model_add(1.0F, -flushed(2.0 / static_cast<double>(model_add(power, 1.0F))));
  return x < 0.0F ? -far : far;
}

class Model {
 public:
  Model(const PagedSequence& sequence, const float* query, const QueryTraits& traits,
        size_t position)
      : sequence_(sequence),
        cap_(traits.score_cap * kBf16ScoreScale),
        slope_(traits.slope * kBf16ScoreScale),
        position_(position),
        dimensions_(sequence.head_dimension()),
        padded_(round_up<size_t>(dimensions_, kBlock)),
        query_(padded_),
        output_(dimensions_) {
    const float factor = traits.scale * kBf16ScoreScale;
    for (size_t d = 0; d < dimensions_; ++d) query_[d] = to_bf16(model_multiply(query[d], factor));
    if (!traits.sink) return;
    maximum_ = *traits.sink * kBf16ScoreScale;
    sums_[0] = 1.0F;
  }

  // The keys [begin, end) of chunk `chunk`, by position.
  void take(size_t chunk, size_t begin, size_t end) {
    const size_t first = chunk * kAttentionChunkTokens;
    std::vector<float> scores(kAttentionChunkTokens, -std::numeric_limits<float>::infinity());
    float maximum = maximum_;
    for (size_t token = begin; token < end; ++token) {
      std::vector<float> key(padded_);
      for (size_t d = 0; d < dimensions_; ++d) key[d] = to_bf16(sequence_.key(token, d));
      const float score = changed(add_product(query_, key, 0.0F), token);
      scores[token - first] = score;
      if (score > maximum) maximum = score;
    }
    const float old =
        model_exponential(model_multiply(model_add(maximum_, -maximum), kBf16ScoreUnit));
    maximum_ = maximum;
    for (float& sum : sums_) sum = model_multiply(sum, old);
    for (float& output : output_) output = model_multiply(output, old);
    std::vector<float> probabilities(kAttentionChunkTokens);
    for (size_t i = 0; i < kAttentionChunkTokens; ++i) {
      probabilities[i] = probability(model_add(scores[i], -maximum));
      sums_[i % kLanes] = model_add(sums_[i % kLanes], probabilities[i]);
    }
    for (size_t d = 0; d < dimensions_; ++d) {
      std::vector<float> values(kAttentionChunkTokens);
      for (size_t t = begin; t < end; ++t) values[t - first] = to_bf16(sequence_.value(t, d));
      output_[d] = add_product(probabilities, values, output_[d]);
    }
  }

  std::vector<float> result() const {
    std::array<float, kLanes> sums = sums_;
    for (size_t apart = kLanes / 2; apart > 0; apart /= 2) {
      for (size_t i = 0; i < apart; ++i) sums[i] = model_add(sums[i], sums[i + apart]);
    }
    std::vector<float> result = output_;
    for (float& each : result) each = flushed(static_cast<double>(each) / sums[0]) + 0.0F;
    return result;
  }

 private:
  // The token's score, capped, and with its part of the slope.
  float changed(float score, size_t token) const {
    if (cap_ != 0) {
      const float part = flushed(static_cast<double>(score) / static_cast<double>(cap_));
      score = model_multiply(model_tangent(part), cap_);
    }
    const float distance =
        -static_cast<float>(position_ > token ? position_ - token : token - position_);
    return slope_ != 0 ? model_fma(slope_, distance, score) : score;
  }

  const PagedSequence& sequence_;
  float cap_;
  float slope_;
  size_t position_;
  size_t dimensions_;
  size_t padded_;
  std::vector<float> query_;
  float maximum_ = -FLT_MAX;
  std::array<float, kLanes> sums_ = {};
  std::vector<float> output_;
};

}  // namespace

std::vector<float> model_attention(const PagedSequence& sequence, const float* query,
                                   const QueryTraits& traits, size_t position) {
  Model model(sequence, query, traits, position);
  const size_t begin = first_seen_key(position, traits.window, traits.section);
  const size_t end = traits.end(position, sequence.context());
  for (size_t chunk = begin / kAttentionChunkTokens; chunk * kAttentionChunkTokens < end; ++chunk) {
    const size_t first = chunk * kAttentionChunkTokens;
    model.take(chunk, std::max(begin, first), std::min(end, first + kAttentionChunkTokens));
  }
  return model.result();
}

}  // namespace lockstep
