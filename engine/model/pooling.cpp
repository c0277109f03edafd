#include "engine/model/pooling.h"

#include <string>

namespace lockstep {
namespace {

// The file format's pooling types.
constexpr uint64_t kNoPooling = 0;
constexpr uint64_t kMean = 1;
constexpr uint64_t kFirst = 2;
constexpr uint64_t kLast = 3;
constexpr uint64_t kRank = 4;

}  // namespace

std::string_view pooling_name(Pooling pooling) {
  return pooling == Pooling::kMean ? "mean" : "last";
}

Result<Pooling> read_pooling(const GgufFile& file, std::string_view architecture) {
  const std::string prefix(architecture);
  const auto causal = file.boolean(prefix + ".attention.causal");
  if (!causal) return std::unexpected(causal.error());
  if (!causal->value_or(true)) {
    return invalid_input(
        "{}.attention.causal is false, but this server lets tokens see only those before them",
        prefix);
  }
  const std::string key = prefix + ".pooling_type";
  const auto type = file.integer(key);
  if (!type) return std::unexpected(type.error());
  switch (type->value_or(kLast)) {
    case kMean:
      return Pooling::kMean;
    case kLast:
      return Pooling::kLast;
    case kNoPooling:
      return invalid_input("{} is 0 (none): the model's rows are not meant to be pooled", key);
    case kFirst:
      return invalid_input("{} is 2 (the first token), which in this architecture sees no other",
                           key);
    case kRank:
      return invalid_input("{} is 4 (rank): the model ranks texts, it does not embed them", key);
    default:
      return invalid_input("{} is {}; known are 1 (mean) and 3 (last)", key, **type);
  }
}

}  // namespace lockstep
