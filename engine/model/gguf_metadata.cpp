#include <string_view>

#include "engine/base/ascii.h"
#include "engine/model/bounded_reader.h"
#include "engine/model/gguf_part.h"

namespace lockstep {
namespace {

// The bounds below are far above any model there is; they keep a hostile file of any size from
// taking more than about 1 GiB of memory.
constexpr uint64_t kKeyBytesMax = 65535;                // the specification's own limit
constexpr uint64_t kStringBytesMax = 16 * 1024 * 1024;  // a chat template has tens of KiB
constexpr uint64_t kArrayElementsMax = 1 << 24;  // in all arrays; a large vocabulary has 2 million
constexpr uint64_t kMetadataBytesMax = 512 * 1024 * 1024;

// Types of values as the file numbers them.
enum ValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// Reads the values of one file; holds what its bounds have left.
class MetadataReader {
 public:
  explicit MetadataReader(BoundedReader& reader) : reader_(reader) {}

  GgufValue value(std::string_view field) {
    const uint64_t start = reader_.position();
    const auto type = reader_.number<uint32_t>(field);
    switch (type) {
      case kUint8:
        return uint64_t{reader_.number<uint8_t>(field)};
      case kInt8:
        return int64_t{reader_.number<int8_t>(field)};
      case kUint16:
        return uint64_t{reader_.number<uint16_t>(field)};
      case kInt16:
        return int64_t{reader_.number<int16_t>(field)};
      case kUint32:
        return uint64_t{reader_.number<uint32_t>(field)};
      case kInt32:
        return int64_t{reader_.number<int32_t>(field)};
      case kFloat32:
        return double{reader_.number<float>(field)};
      case kBool:
        return truth(field);
      case kString:
        return reader_.text(field, kStringBytesMax);
      case kArray:
        return array(field);
      case kUint64:
        return reader_.number<uint64_t>(field);
      case kInt64:
        return reader_.number<int64_t>(field);
      case kFloat64:
        return reader_.number<double>(field);
      default:
        reader_.fail(field, start, "value type {} is not one of GGUF's (0 to 12)", type);
        return false;
    }
  }

 private:
  bool truth(std::string_view field) {
    const uint64_t start = reader_.position();
    const auto byte = reader_.number<uint8_t>(field);
    if (byte > 1) reader_.fail(field, start, "a truth value of {}; it must be 0 or 1", byte);
    return byte == 1;
  }

  GgufArray array(std::string_view field) {
    const uint64_t start = reader_.position();
    const auto type = reader_.number<uint32_t>(field);
    const auto count = reader_.number<uint64_t>(field);
    switch (type) {
      case kUint8:
        return numbers<uint8_t, uint64_t>(field, start, count);
      case kInt8:
        return numbers<int8_t, int64_t>(field, start, count);
      case kUint16:
        return numbers<uint16_t, uint64_t>(field, start, count);
      case kInt16:
        return numbers<int16_t, int64_t>(field, start, count);
      case kUint32:
        return numbers<uint32_t, uint64_t>(field, start, count);
      case kInt32:
        return numbers<int32_t, int64_t>(field, start, count);
      case kFloat32:
        return numbers<float, double>(field, start, count);
      case kBool:
        return truths(field, start, count);
      case kString:
        return texts(field, start, count);
      case kUint64:
        return numbers<uint64_t, uint64_t>(field, start, count);
      case kInt64:
        return numbers<int64_t, int64_t>(field, start, count);
      case kFloat64:
        return numbers<double, double>(field, start, count);
      case kArray:
        reader_.fail(field, start, "an array of arrays is not accepted");
        break;
      default:
        reader_.fail(field, start, "array element type {} is not one of GGUF's (0 to 12)", type);
    }
    return {};
  }

  // Whether an array of `count` elements may be allocated; each has element_bytes_min or more.
  bool admit(std::string_view field, uint64_t start, uint64_t count, uint64_t element_bytes_min) {
    if (reader_.failed()) return false;
    const uint64_t possible = reader_.remaining() / element_bytes_min;
    if (count > possible) {
      reader_.fail(field, start, "an array of {} elements, but the file has space for {} at most",
                   count, possible);
      return false;
    }
    if (count > elements_left_) {
      reader_.fail(field, start, "with its {} elements the arrays have more than {} in all", count,
                   kArrayElementsMax);
      return false;
    }
    elements_left_ -= count;
    return true;
  }

  template <typename Stored, typename Wide>
  std::vector<Wide> numbers(std::string_view field, uint64_t start, uint64_t count) {
    std::vector<Wide> result;
    if (!admit(field, start, count, sizeof(Stored))) return result;
    result.reserve(count);
    for (uint64_t index = 0; index < count && !reader_.failed(); ++index) {
      result.push_back(Wide{reader_.number<Stored>(field)});
    }
    return result;
  }

  std::vector<bool> truths(std::string_view field, uint64_t start, uint64_t count) {
    std::vector<bool> result;
    if (!admit(field, start, count, 1)) return result;
    result.reserve(count);
    for (uint64_t index = 0; index < count && !reader_.failed(); ++index) {
      result.push_back(truth(field));
    }
    return result;
  }

  std::vector<std::string> texts(std::string_view field, uint64_t start, uint64_t count) {
    std::vector<std::string> result;
    if (!admit(field, start, count, sizeof(uint64_t))) return result;
    result.reserve(count);
    for (uint64_t index = 0; index < count && !reader_.failed(); ++index) {
      result.push_back(reader_.text(field, kStringBytesMax));
    }
    return result;
  }

  BoundedReader& reader_;
  uint64_t elements_left_ = kArrayElementsMax;
};

struct KindOfValue {
  std::string operator()(int64_t number) const { return fmt::format("the integer {}", number); }
  std::string operator()(uint64_t number) const { return fmt::format("the integer {}", number); }
  std::string operator()(double number) const { return fmt::format("the number {}", number); }
  std::string operator()(bool truth) const { return truth ? "true" : "false"; }
  std::string operator()(const std::string& text) const {
    return fmt::format("the string {}", in_quotes(text));
  }
  std::string operator()(const GgufArray& array) const { return std::visit(*this, array); }

  std::string operator()(const std::vector<bool>& array) const {
    return fmt::format("an array of {} truth values", array.size());
  }
  std::string operator()(const std::vector<std::string>& array) const {
    return fmt::format("an array of {} strings", array.size());
  }
  std::string operator()(const std::vector<double>& array) const {
    return fmt::format("an array of {} floating-point numbers", array.size());
  }
  template <typename Integer>
  std::string operator()(const std::vector<Integer>& array) const {
    return fmt::format("an array of {} integers", array.size());
  }
};

}  // namespace

std::map<std::string, GgufValue, std::less<>> read_gguf_metadata(BoundedReader& reader,
                                                                 uint64_t count) {
  std::map<std::string, GgufValue, std::less<>> metadata;
  MetadataReader values(reader);
  const uint64_t first = reader.position();
  for (uint64_t index = 0; index < count && !reader.failed(); ++index) {
    const uint64_t start = reader.position();
    std::string key = reader.text(fmt::format("the key of metadata entry {}", index), kKeyBytesMax);
    if (reader.failed()) break;
    const std::string field = fmt::format("metadata {}", in_quotes(key));
    if (key.empty()) reader.fail(field, start, "an empty key");
    if (metadata.contains(key)) reader.fail(field, start, "the key is there twice");
    GgufValue value = values.value(field);
    if (reader.position() - first > kMetadataBytesMax) {
      reader.fail(field, start, "the metadata is larger than {} bytes", kMetadataBytesMax);
    }
    metadata.emplace(std::move(key), std::move(value));
  }
  return metadata;
}

std::string kind_of_value(const GgufValue& value) {
  return std::visit(KindOfValue{}, value);
}

}  // namespace lockstep
