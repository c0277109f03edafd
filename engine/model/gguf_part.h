// The header of one GGUF file: what gguf_file.cpp joins to a model. Nothing of the tensors' data is
// read; what the header says of it is checked against the file's size.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "engine/base/result.h"
#include "engine/tensor/format.h"

namespace lockstep {

class BoundedReader;
class ByteSource;

// An array of metadata. Numbers keep their own type widened to 64 bits.
using GgufArray = std::variant<std::vector<int64_t>, std::vector<uint64_t>, std::vector<double>,
                               std::vector<std::string>, std::vector<bool>>;
using GgufValue = std::variant<int64_t, uint64_t, double, bool, std::string, GgufArray>;

// Reads `count` keys with their values; the reader has failed if any was bad.
std::map<std::string, GgufValue, std::less<>> read_gguf_metadata(BoundedReader& reader,
                                                                 uint64_t count);

// The kind of a value, for messages: "an array of 3 strings".
std::string kind_of_value(const GgufValue& value);

struct GgufTensor {
  std::string name;
  Format format = Format::kF32;
  // 4 or 8 where the elements are whole numbers (I32, I64), of no format; else 0.
  uint32_t integer_bytes = 0;
  std::vector<uint64_t> dimensions;  // fastest first, 1 to 4 of them, none zero
  uint32_t part = 0;                 // which of the split files holds it
  uint64_t offset = 0;               // from the start of that file, in bytes
  uint64_t size_bytes = 0;

  uint64_t columns() const { return dimensions[0]; }  // elements of a row
  uint64_t rows() const;                              // product of the other dimensions
};

struct GgufPart {
  uint32_t version = 0;
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<GgufTensor> tensors;  // in the file's order; `part` is not set
  uint64_t header_bytes = 0;        // from the file's start to the end of the list of tensors
};

// Reads and checks the whole header. Memory stays proportional to the header's bytes, and bounded
// for a header of any size. Fails with kInvalidInput, or kMachineRefused when reading fails.
Result<GgufPart> read_gguf_part(const ByteSource& source);

}  // namespace lockstep
