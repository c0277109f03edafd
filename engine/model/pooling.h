// Which of a text's hidden rows an embedding is made of.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/base/result.h"
#include "engine/model/gguf_file.h"

namespace lockstep {

enum class Pooling : uint8_t {
  kMean,  // all tokens' rows, summed
  kLast,  // the last token's, which has seen all others
};

std::string_view pooling_name(Pooling pooling);  // "mean", "last"

// The pooling that the file says (<architecture>.pooling_type); kLast if it says nothing, since
// tokens of these architectures see those before them alone. kInvalidInput for files that are for
// something else: another pooling, or attention in both directions.
Result<Pooling> read_pooling(const GgufFile& file, std::string_view architecture);

}  // namespace lockstep
