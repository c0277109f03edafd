#include "engine/model/architectures/model_keys.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep {

template <typename T>
std::optional<T> ModelKeys::value_of(Result<std::optional<T>> value) {
  if (value) return std::move(*value);
  fail(value.error());
  return std::nullopt;
}

size_t ModelKeys::count(std::string_view key, std::optional<uint64_t> fallback, uint64_t most,
                        uint64_t least) {
  const std::string name = name_of(key);
  const auto value = file_.integer(name);
  if (!value) return fail(value.error());
  const std::optional<uint64_t> found = value->has_value() ? *value : fallback;
  if (!found) return fail(invalid_input("{} is missing", name).error());
  if (*found < least || *found > most) {
    return fail(
        invalid_input("{} is {}; it must be from {} to {}", name, *found, least, most).error());
  }
  return *found;
}

size_t ModelKeys::count_or_none(std::string_view key, uint64_t most) {
  const auto value = file_.integer(name_of(key));
  if (value && value->value_or(0) == 0) return 0;
  return count(key, {}, most);
}

bool ModelKeys::is_array(const std::string& name) const {
  const auto entry = file_.metadata().find(name);
  return entry != file_.metadata().end() && std::holds_alternative<GgufArray>(entry->second);
}

std::vector<size_t> ModelKeys::counts(std::string_view key, size_t layers, uint64_t least,
                                      uint64_t most) {
  const std::string name = name_of(key);
  std::vector<size_t> counts(layers, std::max<uint64_t>(least, 1));
  if (!is_array(name)) {
    counts.assign(layers,
                  least == 0 && value_of(file_.integer(name)) == 0 ? 0 : count(key, {}, most));
    return counts;
  }
  const auto read = value_of(file_.integers(name)).value_or(std::vector<int64_t>());
  if (read.size() < layers) {
    fail(invalid_input("{} has {} elements; there are {} layers", name, read.size(), layers)
             .error());
    return counts;
  }
  for (size_t layer = 0; layer < layers; ++layer) {
    const int64_t value = read[layer];
    if (value >= 0 && static_cast<uint64_t>(value) >= least &&
        static_cast<uint64_t>(value) <= most) {
      counts[layer] = static_cast<size_t>(value);
      continue;
    }
    fail(invalid_input("{} holds {} at {}; it must be from {} to {}", name, value, layer, least,
                       most)
             .error());
  }
  return counts;
}

double ModelKeys::number(std::string_view key, std::optional<double> fallback) {
  const std::string name = name_of(key);
  const auto value = file_.number(name);
  if (!value) return static_cast<double>(fail(value.error()));
  const std::optional<double> found = value->has_value() ? *value : fallback;
  if (!found) return static_cast<double>(fail(invalid_input("{} is missing", name).error()));
  if (!std::isfinite(*found) || *found <= 0) {
    return static_cast<double>(
        fail(invalid_input("{} is {}; it must be above 0", name, *found).error()));
  }
  return *found;
}

double ModelKeys::factor(std::string_view key, double fallback) {
  const auto value = file_.number(name_of(key));
  if (value && value->has_value() && **value == 0) return 1;
  return number(key, fallback);
}

std::optional<double> ModelKeys::any_number(std::string_view key) {
  return value_of(file_.number(name_of(key)));
}

std::optional<bool> ModelKeys::flag(std::string_view key) {
  return value_of(file_.boolean(name_of(key)));
}

std::string ModelKeys::text(std::string_view key) {
  return value_of(file_.text(name_of(key))).value_or("");
}

std::vector<float> ModelKeys::numbers(const std::string& name, size_t layers) {
  std::vector<float> numbers(layers);
  if (is_array(name)) {
    numbers = value_of(file_.numbers(name)).value_or(numbers);
  } else if (const auto all = value_of(file_.number(name))) {
    numbers.assign(layers, static_cast<float>(*all));
  } else {
    fail(invalid_input("{} is missing", name).error());
  }
  if (numbers.size() < layers) {
    fail(invalid_input("{} has {} elements; there are {} layers", name, numbers.size(), layers)
             .error());
    numbers.resize(layers);
  }
  for (size_t layer = 0; layer < layers; ++layer) {
    if (std::isfinite(numbers[layer])) continue;
    fail(
        invalid_input("{} holds {} at {}; it must be finite", name, numbers[layer], layer).error());
  }
  return numbers;
}

std::vector<bool> ModelKeys::pattern(std::string_view key, size_t layers, size_t period,
                                     bool is_first) {
  const std::string name = name_of(key);
  std::vector<bool> pattern(layers);
  if (is_array(name)) {
    const auto read = value_of(file_.booleans(name)).value_or(pattern);
    if (read.size() < layers) {
      fail(invalid_input("{} has {} elements; there are {} layers", name, read.size(), layers)
               .error());
      return pattern;
    }
    return {read.begin(), read.begin() + static_cast<ptrdiff_t>(layers)};
  }
  const uint64_t every = value_of(file_.integer(name)).value_or(period);
  for (size_t layer = 0; layer < layers; ++layer) {
    const bool is_full = every != 0 && layer % every == (is_first ? 0 : every - 1);
    pattern[layer] = !is_full;
  }
  return pattern;
}

Result<void> ModelKeys::result() const {
  if (error_) return std::unexpected(*error_);
  return {};
}

size_t ModelKeys::fail(const Error& error) {
  if (!error_) error_ = error;
  return 1;
}

Result<size_t> read_layer_count(const GgufFile& file, const std::string& architecture) {
  ModelKeys keys(file, architecture);
  const size_t blocks = keys.count("block_count", {}, kMostLayers);
  const size_t predicting = keys.count_or_none("nextn_predict_layers", kMostLayers);
  if (auto read = keys.result(); !read) return std::unexpected(read.error());
  return blocks - std::min(predicting, blocks);
}

}  // namespace lockstep
