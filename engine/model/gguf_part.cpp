#include "engine/model/gguf_part.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <string_view>

#include "engine/base/ascii.h"
#include "engine/base/checked_math.h"
#include "engine/model/bounded_reader.h"

namespace lockstep {
namespace {

constexpr uint32_t kMagic = 0x46554747;          // "GGUF"
constexpr uint64_t kMetadataCountMax = 1 << 13;  // real files have below 100
constexpr uint64_t kTensorCountMax = 1 << 20;    // one tensor per expert of a large mixture: 50,000
constexpr uint64_t kTensorNameBytesMax = 64;     // the specification's own limit
constexpr uint32_t kDimensionCountMax = 4;
constexpr uint64_t kElementsMax = std::numeric_limits<int64_t>::max();
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kAlignmentMin = 8;
constexpr uint64_t kAlignmentMax = 1 << 20;
constexpr std::string_view kAlignmentKey = "general.alignment";

// The least that an entry of the two lists can take in the file.
constexpr uint64_t kMetadataBytesMin = 8 + 1 + 4 + 1;        // key, type, value
constexpr uint64_t kTensorBytesMin = 8 + 1 + 4 + 8 + 4 + 8;  // name, dimensions, type, offset

uint32_t read_version(BoundedReader& reader) {
  const auto magic = reader.number<uint32_t>("the magic number");
  if (reader.failed()) return 0;
  if (magic != kMagic) {
    const std::string_view bytes(reinterpret_cast<const char*>(&magic), sizeof(magic));
    reader.fail("the magic number", 0, "{} where a GGUF file has \"GGUF\"; it is another format",
                in_quotes(bytes));
    return 0;
  }
  const auto version = reader.number<uint32_t>("the version");
  if (reader.failed() || version == 2 || version == 3) return version;
  if ((version & 0xffff) == 0 && version != 0) {
    reader.fail("the version", 4, "0x{:08x}: the file is big endian; convert it to little endian",
                version);
  } else {
    reader.fail("the version", 4, "{}; versions 2 and 3 can be read, convert the model anew",
                version);
  }
  return version;
}

uint64_t read_count(BoundedReader& reader, std::string_view field, uint64_t entry_bytes_min,
                    uint64_t count_max) {
  const uint64_t start = reader.position();
  const auto count = reader.number<uint64_t>(field);
  if (reader.failed()) return 0;
  const uint64_t possible = reader.remaining() / entry_bytes_min;
  if (count > possible) {
    reader.fail(field, start, "{}, but the file has space for {} at most", count, possible);
  } else if (count > count_max) {
    reader.fail(field, start, "{}; at most {} are accepted", count, count_max);
  }
  return reader.failed() ? 0 : count;
}

// Fills size_bytes, with everything about the shape checked.
void check_shape(BoundedReader& reader, std::string_view field, uint64_t start,
                 GgufTensor& tensor) {
  uint64_t elements = 1;
  for (size_t index = 0; index < tensor.dimensions.size(); ++index) {
    const uint64_t dimension = tensor.dimensions[index];
    if (dimension == 0) {
      reader.fail(field, start, "dimension {} is zero", index);
      return;
    }
    const auto product = checked_multiply(elements, dimension);
    if (!product || *product > kElementsMax) {
      reader.fail(field, start, "more than 2^63 elements ({})",
                  fmt::join(tensor.dimensions, " x "));
      return;
    }
    elements = *product;
  }
  const FormatTraits& format = traits(tensor.format);
  if (tensor.integer_bytes > 0) {
    const auto bytes = checked_multiply(elements, tensor.integer_bytes);
    if (!bytes) reader.fail(field, start, "more than 2^64 bytes ({} elements)", elements);
    tensor.size_bytes = bytes.value_or(0);
    return;
  }
  if (tensor.columns() % format.block_elements != 0) {
    reader.fail(field, start, "rows of {} elements are not whole blocks of {} ({})",
                tensor.columns(), format.block_elements, format.name);
    return;
  }
  const auto bytes = checked_multiply(elements / format.block_elements, format.block_bytes);
  if (!bytes) {
    reader.fail(field, start, "more than 2^64 bytes ({} elements)", elements);
    return;
  }
  tensor.size_bytes = *bytes;
}

struct TypeName {
  uint32_t number = 0;
  std::string_view name;
};

// The numbers of enum ggml_type that are no Format, those included that no file of today has.
constexpr auto kOtherTypes = std::to_array<TypeName>({
    {4, "Q4_2"},
    {5, "Q4_3"},
    {9, "Q8_1"},
    {15, "Q8_K"},
    {24, "I8"},
    {25, "I16"},
    {28, "F64"},
    {31, "Q4_0_4_4"},
    {32, "Q4_0_4_8"},
    {33, "Q4_0_8_8"},
    {36, "IQ4_NL_4_4"},
    {37, "IQ4_NL_4_8"},
    {38, "IQ4_NL_8_8"},
});

// The bytes of an element of the types of whole numbers that are read; 0: it is none of them.
uint32_t integer_bytes_of(uint32_t ggml_type) {
  constexpr uint32_t kI32 = 26;
  constexpr uint32_t kI64 = 27;
  if (ggml_type == kI32) return sizeof(int32_t);
  return ggml_type == kI64 ? sizeof(int64_t) : 0;
}

// "Q8_1"; empty for a number that is none of those known here.
std::string_view other_type_name(uint32_t ggml_type) {
  const auto found = std::ranges::find(kOtherTypes, ggml_type, &TypeName::number);
  return found == kOtherTypes.end() ? std::string_view() : found->name;
}

std::string supported_formats() {
  std::string names;
  for (const FormatTraits& format : all_formats()) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", format.name);
  }
  return names;
}

// One entry of the tensor list; its offset still counts from the start of the data.
GgufTensor read_tensor(BoundedReader& reader, uint64_t index) {
  const uint64_t start = reader.position();
  GgufTensor tensor;
  tensor.name = reader.text(fmt::format("the name of tensor {}", index), kTensorNameBytesMax);
  const std::string field = fmt::format("tensor {}", in_quotes(tensor.name));
  const auto dimension_count = reader.number<uint32_t>(field);
  if (reader.failed()) return tensor;
  if (tensor.name.empty()) reader.fail(field, start, "an empty name");
  if (dimension_count == 0 || dimension_count > kDimensionCountMax) {
    reader.fail(field, start, "{} dimensions; 1 to {} are accepted", dimension_count,
                kDimensionCountMax);
    return tensor;
  }
  for (uint32_t dimension = 0; dimension < dimension_count; ++dimension) {
    tensor.dimensions.push_back(reader.number<uint64_t>(field));
  }
  const auto type = reader.number<uint32_t>(field);
  tensor.offset = reader.number<uint64_t>(field);
  if (reader.failed()) return tensor;
  tensor.integer_bytes = integer_bytes_of(type);
  const auto format = format_of_ggml_type(type);
  if (!format && tensor.integer_bytes == 0) {
    const std::string_view name = other_type_name(type);
    reader.fail(field, start, "ggml type {}{} is not supported; supported are {}", type,
                name.empty() ? "" : fmt::format(" ({})", name), supported_formats());
    return tensor;
  }
  tensor.format = format.value_or(Format::kF32);
  check_shape(reader, field, start, tensor);
  return tensor;
}

std::vector<GgufTensor> read_tensors(BoundedReader& reader, uint64_t count) {
  std::vector<GgufTensor> tensors;
  std::set<std::string, std::less<>> names;
  tensors.reserve(count);
  for (uint64_t index = 0; index < count && !reader.failed(); ++index) {
    const uint64_t start = reader.position();
    tensors.push_back(read_tensor(reader, index));
    const std::string& name = tensors.back().name;
    if (!reader.failed() && !names.insert(name).second) {
      reader.fail(fmt::format("tensor {}", in_quotes(name)), start, "the name is there twice");
    }
  }
  return tensors;
}

Result<uint64_t> alignment_of(const ByteSource& source, const GgufPart& part) {
  const auto entry = part.metadata.find(kAlignmentKey);
  if (entry == part.metadata.end()) return kDefaultAlignment;
  const auto* alignment = std::get_if<uint64_t>(&entry->second);
  if (alignment == nullptr || *alignment < kAlignmentMin || *alignment > kAlignmentMax ||
      (*alignment & (*alignment - 1)) != 0) {
    return invalid_input("{}: metadata \"{}\": {}; it must be a power of two from {} to {}",
                         source.name(), kAlignmentKey, kind_of_value(entry->second), kAlignmentMin,
                         kAlignmentMax);
  }
  return *alignment;
}

// Makes the offsets count from the start of the file, each extent inside it.
Result<void> place_tensors(const ByteSource& source, uint64_t header_bytes, uint64_t alignment,
                           std::vector<GgufTensor>& tensors) {
  const auto data_start = checked_round_up(header_bytes, alignment);
  for (GgufTensor& tensor : tensors) {
    if (tensor.offset % alignment != 0) {
      return invalid_input("{}: tensor {}: its offset {} is not a multiple of the alignment {}",
                           source.name(), in_quotes(tensor.name), tensor.offset, alignment);
    }
    const auto start = data_start ? checked_add(*data_start, tensor.offset) : std::nullopt;
    const auto end = start ? checked_add(*start, tensor.size_bytes) : std::nullopt;
    if (!end || *end > source.size_bytes()) {
      return invalid_input(
          "{}: tensor {}: its {} bytes at offset {} of the data, which starts at byte {}, reach "
          "past the file's end at byte {}; the file is cut short or damaged",
          source.name(), in_quotes(tensor.name), tensor.size_bytes, tensor.offset,
          data_start.value_or(header_bytes), source.size_bytes());
    }
    tensor.offset = *start;
  }
  return {};
}

Result<void> check_overlaps(const ByteSource& source, const std::vector<GgufTensor>& tensors) {
  std::vector<const GgufTensor*> ordered;
  ordered.reserve(tensors.size());
  for (const GgufTensor& tensor : tensors) ordered.push_back(&tensor);
  std::ranges::sort(ordered, {}, &GgufTensor::offset);
  for (size_t index = 1; index < ordered.size(); ++index) {
    const GgufTensor& before = *ordered[index - 1];
    const GgufTensor& after = *ordered[index];
    if (before.offset + before.size_bytes > after.offset) {
      return invalid_input("{}: tensor {} at byte {} overlaps tensor {} of {} bytes at byte {}",
                           source.name(), in_quotes(after.name), after.offset,
                           in_quotes(before.name), before.size_bytes, before.offset);
    }
  }
  return {};
}

}  // namespace

uint64_t GgufTensor::rows() const {
  uint64_t product = 1;
  for (size_t index = 1; index < dimensions.size(); ++index) product *= dimensions[index];
  return product;
}

Result<GgufPart> read_gguf_part(const ByteSource& source) {
  BoundedReader reader(source);
  GgufPart part;
  part.version = read_version(reader);
  const uint64_t tensor_count =
      read_count(reader, "the tensor count", kTensorBytesMin, kTensorCountMax);
  const uint64_t metadata_count =
      read_count(reader, "the metadata count", kMetadataBytesMin, kMetadataCountMax);
  part.metadata = read_gguf_metadata(reader, metadata_count);
  if (!reader.failed()) part.tensors = read_tensors(reader, tensor_count);
  if (reader.failed()) return std::unexpected(reader.error());

  part.header_bytes = reader.position();
  const Result<uint64_t> alignment = alignment_of(source, part);
  if (!alignment) return std::unexpected(alignment.error());
  Result<void> checked = place_tensors(source, part.header_bytes, *alignment, part.tensors);
  if (checked) checked = check_overlaps(source, part.tensors);
  if (!checked) return std::unexpected(checked.error());
  return part;
}

}  // namespace lockstep
