// The metadata of a GGUF file's header.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "engine/model/bounded_reader.h"
#include "engine/model/gguf_file.h"

namespace lockstep {

// Reads `count` keys with their values; the reader has failed if any was bad.
std::map<std::string, GgufValue, std::less<>> read_gguf_metadata(BoundedReader& reader,
                                                                 uint64_t count);

// What a value is, for messages: "an array of 3 strings".
std::string kind_of_value(const GgufValue& value);

}  // namespace lockstep
