#include "engine/model/architectures/rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/ascii.h"
#include "engine/kernels/kernel_table.h"
#include "engine/model/architectures/model_keys.h"
#include "engine/model/gguf_file.h"

namespace lockstep {
namespace {

constexpr std::string_view kFactors = "rope_freqs.weight";
constexpr std::string_view kLongFactors = "rope_factors_long.weight";
constexpr std::string_view kShortFactors = "rope_factors_short.weight";

// The scaling that the keys say.
struct Scaling {
  std::string type;
  size_t dimensions = 0;
  double base = 0;
  double factor = 1;            // positions are divided by it
  size_t original_context = 0;  // before the model was trained for a longer one
  std::optional<double> attention_factor;
  std::optional<double> yarn_magnitude;
  double yarn_extrapolation = 1;  // how much of the mixture is kept; 0: all is interpolated
  double yarn_log_multiplier = 0;
  double beta_fast = 32;
  double beta_slow = 1;
};

Result<Scaling> read_scaling(const GgufFile& file, const std::string& architecture,
                             const RopeShape& shape) {
  ModelKeys keys(file, architecture);
  Scaling scaling;
  scaling.type = shape.is_scaled ? keys.text("rope.scaling.type") : "none";
  scaling.dimensions = keys.count("rope.dimension_count", shape.head_dimension, kMaxHeadDimension);
  if (!shape.dimension_key.empty()) {
    scaling.dimensions = keys.count(shape.dimension_key, scaling.dimensions, kMaxHeadDimension);
  }
  const double fallback =
      shape.fallback_key.empty() ? shape.base : keys.number(shape.fallback_key, shape.base);
  scaling.base = keys.number(shape.base_key, fallback);
  // Hunyuan's, where a file leaves it to the reader: a larger base for longer contexts.
  const double alpha = shape.is_scaled ? keys.factor("rope.scaling.alpha", 1) : 1;
  const auto turned = static_cast<double>(scaling.dimensions);
  if (alpha != 1 && turned > 2) scaling.base *= std::pow(alpha, turned / (turned - 2));
  const double old_factor = keys.factor("rope.scale_linear", 1.0);
  scaling.factor = keys.factor("rope.scaling.factor", old_factor);
  scaling.original_context =
      keys.count("rope.scaling.original_context_length", shape.trained_context, kMostContext);
  if (shape.is_scaled) scaling.attention_factor = keys.any_number("rope.scaling.attn_factor");
  scaling.yarn_magnitude = keys.any_number("rope.scaling.yarn_attn_factor");
  scaling.yarn_extrapolation = keys.any_number("rope.scaling.yarn_ext_factor").value_or(1);
  scaling.yarn_log_multiplier = keys.any_number("rope.scaling.yarn_log_multiplier").value_or(0);
  scaling.beta_fast = keys.number("rope.scaling.yarn_beta_fast", 32.0);
  scaling.beta_slow = keys.number("rope.scaling.yarn_beta_slow", 1.0);
  if (auto read = keys.result(); !read) return std::unexpected(read.error());
  constexpr std::array<std::string_view, 5> kTypes = {"", "none", "linear", "yarn", "longrope"};
  if (std::ranges::find(kTypes, scaling.type) == kTypes.end()) {
    return invalid_input("{}.rope.scaling.type is {}; known are none, linear, yarn and longrope",
                         architecture, in_quotes(scaling.type));
  }
  if (scaling.type == "none" || scaling.type == "longrope") scaling.factor = 1;
  if (!std::isfinite(scaling.base)) {
    return invalid_input("{}.rope.scaling.alpha is {}: no rotary frequencies can be made of it",
                         architecture, alpha);
  }
  if (scaling.dimensions > shape.head_dimension || scaling.dimensions % 2 != 0) {
    return invalid_input("{}.{} is {}; it must be even and at most {}", architecture,
                         shape.dimension_key.empty() ? "rope.dimension_count" : shape.dimension_key,
                         scaling.dimensions, shape.head_dimension);
  }
  return scaling;
}

// A text's positions are the same in all sections (time, height, width) but for a fourth, where
// they are 0.
Result<void> check_sections(const GgufFile& file, const std::string& architecture) {
  const std::string key = architecture + ".rope.dimension_sections";
  const auto sections = file.integers(key);
  if (!sections) return std::unexpected(sections.error());
  if (!sections->has_value() || (*sections)->size() < 4 || (**sections)[3] == 0) return {};
  return invalid_input("{} holds {} at 3; known is 0 (sections of time, height and width alone)",
                       key, (**sections)[3]);
}

Result<std::vector<float>> read_factors(const GgufFile& file, std::string_view name, size_t count) {
  const GgufTensor* tensor = file.find_tensor(name);
  if (tensor == nullptr) return std::vector<float>(count, 1.0F);
  if (tensor->rows() != 1 || tensor->columns() != count) {
    return invalid_input("tensor {} has {} rows of {}; expected 1 of {}", name, tensor->rows(),
                         tensor->columns(), count);
  }
  auto factors = read_tensor(file, *tensor);
  if (!factors) return factors;
  for (size_t pair = 0; pair < count; ++pair) {
    const float factor = (*factors)[pair];
    if (!std::isfinite(factor) || factor <= 0) {
      return invalid_input("{} holds {} at {}; it must be above 0", name, factor, pair);
    }
  }
  return factors;
}

std::string_view factors_tensor(const GgufFile& file, const Scaling& scaling,
                                const RopeShape& shape) {
  if (file.find_tensor(kLongFactors) == nullptr || file.find_tensor(kFactors) != nullptr) {
    return kFactors;
  }
  return shape.context_tokens > scaling.original_context ? kLongFactors : kShortFactors;
}

// The (fractional) pair that turns so many times within the original context.
double pair_of_turns(const Scaling& scaling, double turns) {
  const double wavelength = static_cast<double>(scaling.original_context) / turns;
  return static_cast<double>(scaling.dimensions) * std::log(wavelength / (2 * std::numbers::pi)) /
         (2 * std::log(scaling.base));
}

// By pair: 1 where the frequency is kept, 0 where it is divided by the factor.
std::vector<double> yarn_mixture(const Scaling& scaling, bool rounds_ramp) {
  const auto last = static_cast<double>(scaling.dimensions - 1);
  const double begin = pair_of_turns(scaling, scaling.beta_fast);
  const double end = pair_of_turns(scaling, scaling.beta_slow);
  const double low = std::max(0.0, rounds_ramp ? std::floor(begin) : begin);
  const double high = std::min(last, rounds_ramp ? std::ceil(end) : end);
  const double width = std::max(0.001, high - low);
  std::vector<double> kept;
  for (size_t pair = 0; pair < scaling.dimensions / 2; ++pair) {
    const double ramp = std::clamp((static_cast<double>(pair) - low) / width, 0.0, 1.0);
    kept.push_back((1 - ramp) * scaling.yarn_extrapolation);
  }
  return kept;
}

void set_magnitudes(const Scaling& scaling, bool has_long_factors, const RopeShape& shape,
                    Rope& rope) {
  double magnitude = scaling.attention_factor.value_or(1);
  if (scaling.type == "yarn" && scaling.yarn_extrapolation != 0 && scaling.factor > 1) {
    const double logarithm = std::log(scaling.factor);
    const double multiplier = scaling.yarn_log_multiplier;
    const bool of_scores = shape.multiplies_scores && multiplier != 0;
    const double usual = of_scores ? 1 : (1 + 0.1 * logarithm) / (1 + 0.1 * multiplier * logarithm);
    magnitude *= scaling.yarn_magnitude.value_or(usual);
    if (of_scores) rope.score_factor = std::pow(1 + multiplier * logarithm, 2);
  } else if (has_long_factors && !scaling.attention_factor) {
    const auto original = static_cast<double>(scaling.original_context);
    const double growth = static_cast<double>(shape.trained_context) / original;
    if (growth > 1) magnitude = std::sqrt(1 + std::log(growth) / std::log(original));
  }
  rope.rotary.magnitude = magnitude;
}

}  // namespace

Result<Rope> read_rope(const GgufFile& file, const std::string& architecture,
                       const RopeShape& shape) {
  const auto scaling = read_scaling(file, architecture, shape);
  if (!scaling) return std::unexpected(scaling.error());
  if (auto known = check_sections(file, architecture); !known) {
    return std::unexpected(known.error());
  }
  const std::string_view tensor = factors_tensor(file, *scaling, shape);
  const size_t count = scaling->dimensions / 2;
  if (tensor != kFactors && file.find_tensor(kShortFactors) == nullptr) {
    return invalid_input("tensor {} is missing, though {} is not", kShortFactors, kLongFactors);
  }
  const auto factors =
      shape.is_scaled ? read_factors(file, tensor, count) : std::vector<float>(count, 1.0F);
  if (!factors) return std::unexpected(factors.error());

  Rope rope;
  rope.rotary.pairs = shape.pairs;
  const bool is_yarn = scaling->type == "yarn";
  const std::vector<double> kept =
      is_yarn ? yarn_mixture(*scaling, shape.rounds_ramp) : std::vector<double>(count, 0.0);
  for (size_t pair = 0; pair < count; ++pair) {
    const double exponent =
        -2.0 * static_cast<double>(pair) / static_cast<double>(scaling->dimensions);
    const double frequency = std::pow(scaling->base, exponent);
    const auto factor = static_cast<double>((*factors)[pair]);
    const double scaled = frequency / scaling->factor / factor;
    rope.rotary.frequencies.push_back(
        is_yarn ? scaled * (1 - kept[pair]) + frequency / factor * kept[pair] : scaled);
  }
  set_magnitudes(*scaling, tensor != kFactors, shape, rope);
  const bool finite =
      std::ranges::all_of(rope.rotary.frequencies, [](double each) { return std::isfinite(each); });
  if (!finite) {
    return invalid_input("{}.rope.freq_base is {}: no rotary frequencies can be made of it",
                         architecture, scaling->base);
  }
  if (!std::isfinite(rope.rotary.magnitude) || rope.rotary.magnitude <= 0 ||
      !std::isfinite(rope.score_factor) || rope.score_factor <= 0) {
    return invalid_input(
        "{}.rope.scaling.* make cosines and sines {} times and scores {} times as large; both must "
        "be above 0",
        architecture, rope.rotary.magnitude, rope.score_factor);
  }
  return rope;
}

bool is_rope_tensor(std::string_view name) {
  return name == kFactors || name == kLongFactors || name == kShortFactors;
}

}  // namespace lockstep
