#include "engine/model/pooling.h"

#include <array>
#include <string>

namespace lockstep {
namespace {

// The file format's pooling types.
constexpr uint64_t kNoPooling = 0;
constexpr uint64_t kMean = 1;
constexpr uint64_t kFirst = 2;
constexpr uint64_t kLast = 3;

constexpr std::array<std::string_view, 3> kPoolingNames = {"mean", "first", "last"};

Result<void> check_direction(const GgufFile& file, const Model& model) {
  const std::string key = model.architecture + ".attention.causal";
  const auto causal = file.boolean(key);
  if (!causal) return std::unexpected(causal.error());
  if (causal->value_or(true) || model.graph.sees_ahead()) return {};
  return invalid_input(
      "{} is false, but this architecture's tokens are known here to see only those before them",
      key);
}

}  // namespace

std::string_view pooling_name(Pooling pooling) {
  return kPoolingNames[static_cast<size_t>(pooling)];
}

Result<Pooling> read_pooling(const GgufFile& file, const Model& model) {
  if (auto checked = check_direction(file, model); !checked) {
    return std::unexpected(checked.error());
  }
  const bool sees_all = model.graph.sees_ahead();
  if (model.output == ModelOutput::kScores) return sees_all ? Pooling::kFirst : Pooling::kLast;
  const std::string key = model.architecture + ".pooling_type";
  const auto type = file.integer(key);
  if (!type) return std::unexpected(type.error());
  switch (type->value_or(sees_all ? kMean : kLast)) {
    case kMean:
      return Pooling::kMean;
    case kLast:
      return Pooling::kLast;
    case kNoPooling:
      return invalid_input("{} is 0 (none): the model's rows are not meant to be pooled", key);
    case kFirst:
      if (sees_all) return Pooling::kFirst;
      return invalid_input("{} is 2 (the first token), which in this architecture sees no other",
                           key);
    case kRankPooling:
      return invalid_input("{} is 4 (rank): the model ranks texts, it does not embed them", key);
    default:
      return invalid_input("{} is {}; known are 1 (mean), 2 (the first token) and 3 (the last)",
                           key, **type);
  }
}

}  // namespace lockstep
