// The rows of a text that its embedding, or its rank, is made of.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/base/result.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model.h"

namespace lockstep {

enum class Pooling : uint8_t {
  kMean,   // all tokens' rows, summed
  kFirst,  // the first token's, where it sees all others
  kLast,   // the last token's, which has seen all others
};

// <architecture>.pooling_type of models that rank.
inline constexpr uint64_t kRankPooling = 4;

// The kind of a model's rows, and those that make an embedding or a rank.
struct RowUse {
  Pooling pooling = Pooling::kLast;
  ModelOutput output = ModelOutput::kLogits;
};

std::string_view pooling_name(Pooling pooling);  // "mean", "first", "last"

// The pooling that the file says (<architecture>.pooling_type). If it says nothing: kLast where
// tokens see those before them alone, else kMean; of models that rank the token whose scores count.
// kInvalidInput for files that are for something else.
Result<Pooling> read_pooling(const GgufFile& file, const Model& model);

}  // namespace lockstep
