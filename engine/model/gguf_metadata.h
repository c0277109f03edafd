// The metadata of a GGUF file's header.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace lockstep {

class BoundedReader;

// An array of metadata. Numbers keep their own type widened to 64 bits.
using GgufArray = std::variant<std::vector<int64_t>, std::vector<uint64_t>, std::vector<double>,
                               std::vector<std::string>, std::vector<bool>>;
using GgufValue = std::variant<int64_t, uint64_t, double, bool, std::string, GgufArray>;

// Reads `count` keys with their values; the reader has failed if any was bad.
std::map<std::string, GgufValue, std::less<>> read_gguf_metadata(BoundedReader& reader,
                                                                 uint64_t count);

// The kind of a value, for messages: "an array of 3 strings".
std::string kind_of_value(const GgufValue& value);

}  // namespace lockstep
