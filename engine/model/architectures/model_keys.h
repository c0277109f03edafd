// The metadata of one family of models: its keys begin with the architecture's name, as in
// "llama.block_count".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/model/gguf_file.h"

namespace lockstep {

// Bounds on what a file may claim; far above every model there is, far below what would overflow.
inline constexpr uint64_t kMostLayers = 4096;
inline constexpr uint64_t kMostColumns = 1U << 20U;
inline constexpr uint64_t kMostContext = 1U << 28U;

// Reads keys; the first error stays, and what is read after it is of no use.
class ModelKeys {
 public:
  ModelKeys(const GgufFile& file, const std::string& architecture)
      : file_(file), prefix_(architecture + ".") {}

  bool has(std::string_view key) const { return file_.metadata().contains(name_of(key)); }
  // From `least` to `most`; `fallback` where the key is missing.
  size_t count(std::string_view key, std::optional<uint64_t> fallback, uint64_t most,
               uint64_t least = 1);
  // 0 where it is missing.
  size_t count_or_none(std::string_view key, uint64_t most);
  // By layer, each from `least` (0 or 1) to `most`: an array, or one number for all.
  std::vector<size_t> counts(std::string_view key, size_t layers, uint64_t least, uint64_t most);
  // Above 0.
  double number(std::string_view key, std::optional<double> fallback);
  // By which positions are divided: 0, as some files have it, means not at all.
  double factor(std::string_view key, double fallback);
  // Whatever it is.
  std::optional<double> any_number(std::string_view key);
  std::optional<bool> flag(std::string_view key);
  // By layer, of a key whose whole name this is: an array, or one number for all; it must be there,
  // and finite.
  std::vector<float> numbers(const std::string& name, size_t layers);
  // Empty where it is missing.
  std::string text(std::string_view key);
  // By layer: an array of true or false, or a number n, with which all but every n-th layer are
  // meant (0: all layers; without the key `period`): of n layers the last, or the first.
  std::vector<bool> pattern(std::string_view key, size_t layers, size_t period, bool is_first);

  Result<void> result() const;

 private:
  bool is_array(const std::string& name) const;
  std::string name_of(std::string_view key) const { return prefix_ + std::string(key); }
  // The value, or none where the key is missing or holds something else, which is an error.
  template <typename T>
  std::optional<T> value_of(Result<std::optional<T>> value);
  size_t fail(const Error& error);

  const GgufFile& file_;
  std::string prefix_;
  std::optional<Error> error_;
};

// <architecture>.block_count less nextn_predict_layers, blocks that predict further tokens: the
// number of layers, by which some families' models are told apart.
Result<size_t> read_layer_count(const GgufFile& file, const std::string& architecture);

}  // namespace lockstep
