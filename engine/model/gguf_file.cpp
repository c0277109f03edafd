#include "engine/model/gguf_file.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "engine/base/ascii.h"
#include "engine/base/check.h"
#include "engine/model/bounded_reader.h"

namespace lockstep {
namespace {

constexpr uint64_t kPartsMax = 99999;  // what five digits can name

// The names of a split set: PREFIX-00001-of-0000N.gguf, counted from 1.
std::filesystem::path part_path(const std::string& prefix, uint64_t number, uint64_t count) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", prefix, number, count);
}

// PREFIX if `path` has the name of part `number` of `count`.
std::optional<std::string> prefix_of_part(const std::filesystem::path& path, uint64_t number,
                                          uint64_t count) {
  const std::string ending = part_path("", number, count).string();
  const std::string name = path.string();
  if (!name.ends_with(ending)) return std::nullopt;
  return name.substr(0, name.size() - ending.size());
}

std::unexpected<Error> wrong_kind(const GgufFile& file, std::string_view key,
                                  const GgufValue& value, std::string_view wanted) {
  return invalid_input("{}: metadata {} is {}; it must be {}", file.parts().front().string(),
                       in_quotes(key), kind_of_value(value), wanted);
}

std::optional<uint64_t> converted_integer(const GgufValue& value) {
  if (const auto* number = std::get_if<uint64_t>(&value)) return *number;
  const auto* number = std::get_if<int64_t>(&value);
  if (number != nullptr && *number >= 0) return static_cast<uint64_t>(*number);
  return std::nullopt;
}

std::optional<double> converted_number(const GgufValue& value) {
  if (const auto* number = std::get_if<uint64_t>(&value)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<int64_t>(&value)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<double>(&value)) return *number;
  return std::nullopt;
}

// The elements of a numeric array as T; nullopt for an array of something else.
template <typename T>
std::optional<std::vector<T>> converted_numbers(const GgufArray& array) {
  return std::visit(
      [](const auto& elements) -> std::optional<std::vector<T>> {
        using Element = typename std::decay_t<decltype(elements)>::value_type;
        if constexpr (std::is_arithmetic_v<Element> && !std::is_same_v<Element, bool>) {
          std::vector<T> result;
          result.reserve(elements.size());
          for (const Element element : elements) result.push_back(static_cast<T>(element));
          return result;
        } else {
          return std::nullopt;
        }
      },
      array);
}

// Only the first part describes the model; of the others only their place in the set counts.
Result<void> check_place(const ByteSource& source, const GgufPart& part, const GgufFile& first,
                         uint32_t number) {
  const auto part_count = first.integer("split.count");
  const std::pair<std::string_view, uint64_t> wanted[] = {
      {"split.no", number},
      {"split.count", part_count ? part_count->value_or(0) : 0},
  };
  for (const auto& [key, value] : wanted) {
    const auto entry = part.metadata.find(key);
    if (entry == part.metadata.end()) {
      return invalid_input("{}: metadata {} is missing; this part must have {}", source.name(),
                           in_quotes(key), value);
    }
    if (converted_integer(entry->second) != value) {
      return invalid_input("{}: metadata {} is {}; this part must have {}", source.name(),
                           in_quotes(key), kind_of_value(entry->second), value);
    }
  }
  return {};
}

}  // namespace

Result<GgufFile> GgufFile::open(const std::filesystem::path& path) {
  GgufFile file;
  Result<void> done = file.add_file(path);
  if (done) done = file.add_remaining_parts(path);
  if (!done) return std::unexpected(done.error());
  return file;
}

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes, std::string_view name) {
  GgufFile file;
  const Result<void> done = file.add_part(MemorySource(name, bytes), name);
  if (!done) return std::unexpected(done.error());
  return file;
}

Result<void> GgufFile::add_file(const std::filesystem::path& path) {
  auto reader = FileReader::open(path);
  if (!reader) return std::unexpected(reader.error());
  readers_.push_back(std::move(*reader));
  return add_part(FileSource(readers_.back()), path);
}

Result<void> GgufFile::add_part(const ByteSource& source, const std::filesystem::path& path) {
  Result<GgufPart> part = read_gguf_part(source);
  if (!part) return std::unexpected(part.error());
  const auto number = static_cast<uint32_t>(parts_.size());
  if (number == 0) {
    version_ = part->version;
    metadata_ = std::move(part->metadata);
  } else {
    const Result<void> checked = check_place(source, *part, *this, number);
    if (!checked) return checked;
  }
  parts_.push_back(path);
  header_bytes_.push_back(part->header_bytes);
  size_bytes_ += source.size_bytes();
  for (GgufTensor& tensor : part->tensors) {
    tensor.part = number;
    const auto integers = integer_tensors_.find(tensor.name);
    const GgufTensor* const same =
        integers != integer_tensors_.end() ? &integers->second : find_tensor(tensor.name);
    if (same != nullptr) {
      return invalid_input("{}: tensor {} is also in {}", source.name(), in_quotes(tensor.name),
                           parts_[same->part].string());
    }
    add_tensor(std::move(tensor));
  }
  return {};
}

void GgufFile::add_tensor(GgufTensor tensor) {
  const std::string name = tensor.name;
  if (tensor.integer_bytes > 0) {
    integer_tensors_.emplace(name, std::move(tensor));
    return;
  }
  tensor_index_.emplace(name, tensors_.size());
  tensors_.push_back(std::move(tensor));
}

Result<void> GgufFile::borrow(const GgufFile& other, std::string_view tensor,
                              const std::string& name) {
  const GgufTensor* const lent = other.find_tensor(tensor);
  CHECK(lent != nullptr && find_tensor(name) == nullptr && !integer_tensors_.contains(name),
        "tensor {} is not there, or {} is", tensor, name);
  GgufTensor own = *lent;
  const std::filesystem::path& path = other.parts_[lent->part];
  const auto part = std::ranges::find(parts_, path);
  own.part = static_cast<uint32_t>(part - parts_.begin());
  own.name = name;
  if (part == parts_.end()) {
    auto reader = FileReader::open(path);
    if (!reader) return std::unexpected(reader.error());
    size_bytes_ += reader->size_bytes();
    readers_.push_back(std::move(*reader));
    parts_.push_back(path);
    header_bytes_.push_back(other.header_bytes_[lent->part]);
  }
  add_tensor(std::move(own));
  return {};
}

namespace {

template <typename... Arguments>
std::unexpected<Error> wrong_set(const std::filesystem::path& first,
                                 fmt::format_string<Arguments...> format,
                                 Arguments&&... arguments) {
  return invalid_input("{}: {}", first.string(),
                       fmt::format(format, std::forward<Arguments>(arguments)...));
}

}  // namespace

Result<void> GgufFile::add_remaining_parts(const std::filesystem::path& first) {
  const auto count = integer("split.count");
  const auto number = integer("split.no");
  const auto tensor_count = integer("split.tensors.count");
  for (const auto* value : {&count, &number, &tensor_count}) {
    if (!*value) return std::unexpected(value->error());
  }
  // A set that was merged again has the count 0.
  const uint64_t part_count = std::max<uint64_t>(count->value_or(1), 1);
  const uint64_t part_number = number->value_or(0);
  if (part_count > kPartsMax || part_number >= part_count) {
    return wrong_set(
        first, "metadata \"split.no\" {} and \"split.count\" {} do not name a part of a split set",
        part_number, part_count);
  }
  if (part_number != 0) {
    const auto prefix = prefix_of_part(first, part_number + 1, part_count);
    return wrong_set(first, "this is part {} of {}; open the first part{}", part_number + 1,
                     part_count, prefix ? ", " + part_path(*prefix, 1, part_count).string() : "");
  }
  if (part_count > 1) {
    const auto prefix = prefix_of_part(first, 1, part_count);
    if (!prefix) {
      return wrong_set(
          first,
          "this is part 1 of {}, but its name does not end in \"{}\", so that the other parts "
          "cannot be found; give all parts their names again",
          part_count, part_path("", 1, part_count).string());
    }
    for (uint64_t part = 2; part <= part_count; ++part) {
      const std::filesystem::path path = part_path(*prefix, part, part_count);
      if (Result<void> added = add_file(path); !added) return added;
    }
  }
  const size_t held = tensors_.size() + integer_tensors_.size();
  if (*tensor_count && **tensor_count != held) {
    return wrong_set(first, "metadata \"split.tensors.count\" is {}, but the {} parts hold {}",
                     **tensor_count, part_count, held);
  }
  return {};
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto entry = tensor_index_.find(name);
  return entry == tensor_index_.end() ? nullptr : &tensors_[entry->second];
}

std::vector<const GgufTensor*> GgufFile::find_tensors(std::string_view prefix) const {
  std::vector<const GgufTensor*> found;
  for (auto entry = tensor_index_.lower_bound(prefix);
       entry != tensor_index_.end() && entry->first.starts_with(prefix); ++entry) {
    found.push_back(&tensors_[entry->second]);
  }
  return found;
}

Result<std::optional<std::string>> GgufFile::text(std::string_view key) const {
  const auto entry = metadata_.find(key);
  if (entry == metadata_.end()) return std::nullopt;
  if (const auto* text = std::get_if<std::string>(&entry->second)) return *text;
  return wrong_kind(*this, key, entry->second, "a string");
}

Result<std::optional<uint64_t>> GgufFile::integer(std::string_view key) const {
  const auto entry = metadata_.find(key);
  if (entry == metadata_.end()) return std::nullopt;
  if (const auto number = converted_integer(entry->second)) return number;
  return wrong_kind(*this, key, entry->second, "an integer that is not negative");
}

Result<std::optional<double>> GgufFile::number(std::string_view key) const {
  const auto entry = metadata_.find(key);
  if (entry == metadata_.end()) return std::nullopt;
  if (const auto number = converted_number(entry->second)) return number;
  return wrong_kind(*this, key, entry->second, "a number");
}

Result<std::optional<bool>> GgufFile::boolean(std::string_view key) const {
  const auto entry = metadata_.find(key);
  if (entry == metadata_.end()) return std::nullopt;
  if (const auto* truth = std::get_if<bool>(&entry->second)) return *truth;
  return wrong_kind(*this, key, entry->second, "true or false");
}

Result<const std::vector<std::string>*> GgufFile::texts(std::string_view key) const {
  const auto entry = metadata_.find(key);
  if (entry == metadata_.end()) return nullptr;
  if (const auto* array = std::get_if<GgufArray>(&entry->second)) {
    if (const auto* texts = std::get_if<std::vector<std::string>>(array)) return texts;
  }
  return wrong_kind(*this, key, entry->second, "an array of strings");
}

Result<std::optional<std::vector<float>>> GgufFile::numbers(std::string_view key) const {
  const auto entry = metadata_.find(key);
  if (entry == metadata_.end()) return std::nullopt;
  if (const auto* array = std::get_if<GgufArray>(&entry->second)) {
    if (auto numbers = converted_numbers<float>(*array)) return numbers;
  }
  return wrong_kind(*this, key, entry->second, "an array of numbers");
}

Result<std::optional<std::vector<int64_t>>> GgufFile::integers(std::string_view key) const {
  const auto entry = metadata_.find(key);
  if (entry == metadata_.end()) return std::nullopt;
  const auto* array = std::get_if<GgufArray>(&entry->second);
  if (array == nullptr || std::holds_alternative<std::vector<double>>(*array)) {
    return wrong_kind(*this, key, entry->second, "an array of integers");
  }
  if (const auto* large = std::get_if<std::vector<uint64_t>>(array)) {
    for (size_t index = 0; index < large->size(); ++index) {
      if ((*large)[index] > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return invalid_input("{}: metadata {}: element {} is {}, which does not fit 63 bits",
                             parts_.front().string(), in_quotes(key), index, (*large)[index]);
      }
    }
  }
  if (auto integers = converted_numbers<int64_t>(*array)) return integers;
  return wrong_kind(*this, key, entry->second, "an array of integers");
}

Result<std::optional<std::vector<bool>>> GgufFile::booleans(std::string_view key) const {
  const auto entry = metadata_.find(key);
  if (entry == metadata_.end()) return std::nullopt;
  if (const auto* array = std::get_if<GgufArray>(&entry->second)) {
    if (const auto* truths = std::get_if<std::vector<bool>>(array)) return *truths;
    const auto numbers = converted_numbers<int64_t>(*array);
    const bool are_truths = numbers && std::ranges::all_of(*numbers, [](int64_t each) {
                              return each == 0 || each == 1;
                            });
    if (are_truths) return std::vector<bool>(numbers->begin(), numbers->end());
  }
  return wrong_kind(*this, key, entry->second, "an array of true or false");
}

namespace {

// The bytes of a tensor of a million elements at most.
Result<std::vector<std::byte>> read_bytes(const GgufFile& file, const GgufTensor& tensor) {
  constexpr uint64_t kMostElements = 1U << 20U;
  const uint64_t count = tensor.rows() * tensor.columns();
  if (count > kMostElements) {
    return invalid_input("tensor {} has {} elements; at most {} were expected", tensor.name, count,
                         kMostElements);
  }
  CHECK(tensor.part < file.readers().size(), "tensor {} is in part {} of {} files", tensor.name,
        tensor.part, file.readers().size());
  std::vector<std::byte> bytes(tensor.size_bytes);
  const auto read = file.readers()[tensor.part].read(tensor.offset, bytes);
  if (!read) return std::unexpected(read.error());
  return bytes;
}

template <typename Integer>
std::vector<int64_t> integers_of(std::span<const std::byte> bytes) {
  std::vector<Integer> values(bytes.size() / sizeof(Integer));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return {values.begin(), values.end()};
}

}  // namespace

Result<std::vector<float>> read_tensor(const GgufFile& file, const GgufTensor& tensor) {
  const auto bytes = read_bytes(file, tensor);
  if (!bytes) return std::unexpected(bytes.error());
  std::vector<float> values(tensor.rows() * tensor.columns());
  traits(tensor.format).dequantize(bytes->data(), values.size(), values.data());
  return values;
}

Result<std::optional<std::vector<int64_t>>> GgufFile::read_integers(std::string_view name) const {
  const auto found = integer_tensors_.find(name);
  if (found == integer_tensors_.end()) return std::nullopt;
  const auto bytes = read_bytes(*this, found->second);
  if (!bytes) return std::unexpected(bytes.error());
  return found->second.integer_bytes == sizeof(int32_t) ? integers_of<int32_t>(*bytes)
                                                        : integers_of<int64_t>(*bytes);
}

}  // namespace lockstep
