// Writes GGUF files for tests: whole tiny models, and files that are wrong on purpose. Everything
// can be overridden, nothing is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "engine/tensor/format.h"

namespace lockstep::test {

class GgufWriter {
 public:
  // An integer of the header: where it is, for tests that overwrite it.
  struct Field {
    std::string name;
    size_t offset = 0;
    size_t bytes = 0;
  };

  struct Tensor {
    std::string name;
    uint32_t ggml_type = 0;
    std::vector<uint64_t> dimensions;
    std::vector<std::byte> data;
    std::optional<uint64_t> offset;           // instead of the right one
    std::optional<uint32_t> dimension_count;  // instead of the right one
  };

  // May be changed before bytes().
  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t alignment = 32;  // the writer's own; add the key general.alignment where it differs
  std::optional<uint64_t> tensor_count;
  std::optional<uint64_t> metadata_count;
  std::vector<Tensor> tensors;

  // One value of metadata; its type in the file follows from T. Text is text.
  template <typename T>
  GgufWriter& add(std::string_view key, const T& value) {
    Payload payload;
    put_value(payload, value);
    return add_raw(key, type_number<T>(), std::move(payload));
  }

  template <typename T>
  GgufWriter& add_array(std::string_view key, const std::vector<T>& values) {
    Payload payload;
    put(payload, "element type", type_number<T>());
    put(payload, "element count", uint64_t{values.size()});
    for (const auto& value : values) put_value(payload, static_cast<const T&>(value));
    return add_raw(key, kArrayType, std::move(payload));
  }

  GgufWriter& add_tensor(std::string_view name, Format format, std::vector<uint64_t> dimensions,
                         std::vector<std::byte> data) {
    tensors.push_back({std::string(name), traits(format).ggml_type, std::move(dimensions),
                       std::move(data), std::nullopt, std::nullopt});
    return *this;
  }

  // The same with the values of an F32 tensor, or with bytes of a pattern of the right size.
  GgufWriter& add_tensor(std::string_view name, std::vector<uint64_t> dimensions,
                         std::span<const float> values) {
    std::vector<std::byte> data(values.size_bytes());
    if (!data.empty()) std::memcpy(data.data(), values.data(), data.size());
    return add_tensor(name, Format::kF32, std::move(dimensions), std::move(data));
  }
  GgufWriter& add_tensor(std::string_view name, Format format, std::vector<uint64_t> dimensions) {
    size_t bytes = row_bytes(format, dimensions.front());
    for (size_t index = 1; index < dimensions.size(); ++index) bytes *= dimensions[index];
    std::vector<std::byte> data(bytes);
    for (size_t index = 0; index < bytes; ++index) data[index] = std::byte(index * 7 % 31);
    return add_tensor(name, format, std::move(dimensions), std::move(data));
  }

  // A value with a type number and bytes of the caller's choice.
  GgufWriter& add_bytes(std::string_view key, uint32_t type, std::span<const std::byte> bytes) {
    return add_raw(key, type, {{bytes.begin(), bytes.end()}, {}});
  }

  std::vector<std::byte> bytes() const { return whole().bytes; }
  std::vector<Field> fields() const { return whole().fields; }

  void write(const std::filesystem::path& path) const {
    const std::vector<std::byte> content = bytes();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(content.data()),
               static_cast<std::streamsize>(content.size()));
  }

 private:
  static constexpr uint32_t kStringType = 8;
  static constexpr uint32_t kArrayType = 9;

  struct Payload {
    std::vector<std::byte> bytes;
    std::vector<Field> fields;
  };
  struct Entry {
    std::string key;
    uint32_t type = 0;
    Payload value;
  };

  template <typename T>
  static constexpr uint32_t type_number() {
    if constexpr (std::is_same_v<T, uint8_t>) return 0;
    if constexpr (std::is_same_v<T, int8_t>) return 1;
    if constexpr (std::is_same_v<T, uint16_t>) return 2;
    if constexpr (std::is_same_v<T, int16_t>) return 3;
    if constexpr (std::is_same_v<T, uint32_t>) return 4;
    if constexpr (std::is_same_v<T, int32_t>) return 5;
    if constexpr (std::is_same_v<T, float>) return 6;
    if constexpr (std::is_same_v<T, bool>) return 7;
    if constexpr (std::is_same_v<T, uint64_t>) return 10;
    if constexpr (std::is_same_v<T, int64_t>) return 11;
    if constexpr (std::is_same_v<T, double>) return 12;
    return kStringType;
  }

  template <typename T>
  static void put(Payload& payload, std::string name, T value) {
    const size_t offset = payload.bytes.size();
    payload.bytes.resize(offset + sizeof(T));
    std::memcpy(payload.bytes.data() + offset, &value, sizeof(T));
    if (std::is_integral_v<T>) payload.fields.push_back({std::move(name), offset, sizeof(T)});
  }

  static void put_text(Payload& payload, const std::string& name, std::string_view text) {
    put(payload, name + " length", uint64_t{text.size()});
    const auto* first = reinterpret_cast<const std::byte*>(text.data());
    payload.bytes.insert(payload.bytes.end(), first, first + text.size());
  }

  template <typename T>
  static void put_value(Payload& payload, const T& value) {
    if constexpr (std::is_arithmetic_v<T>) {
      put(payload, "value", value);
    } else {
      put_text(payload, "value", value);
    }
  }

  static void append(Payload& whole, const std::string& prefix, const Payload& part) {
    for (const Field& field : part.fields) {
      whole.fields.push_back({prefix + field.name, whole.bytes.size() + field.offset, field.bytes});
    }
    whole.bytes.insert(whole.bytes.end(), part.bytes.begin(), part.bytes.end());
  }

  GgufWriter& add_raw(std::string_view key, uint32_t type, Payload value) {
    metadata_.push_back({std::string(key), type, std::move(value)});
    return *this;
  }

  void pad(std::vector<std::byte>& bytes) const {
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
  }

  Payload whole() const {
    Payload file;
    for (const char character : magic) file.bytes.push_back(static_cast<std::byte>(character));
    put(file, "version", version);
    put(file, "tensor count", tensor_count.value_or(tensors.size()));
    put(file, "metadata count", metadata_count.value_or(metadata_.size()));
    for (const Entry& entry : metadata_) {
      put_text(file, entry.key + " key", entry.key);
      put(file, entry.key + " type", entry.type);
      append(file, entry.key + " ", entry.value);
    }
    uint64_t offset = 0;
    for (const Tensor& tensor : tensors) {
      put_text(file, tensor.name + " name", tensor.name);
      put(file, tensor.name + " dimension count",
          tensor.dimension_count.value_or(static_cast<uint32_t>(tensor.dimensions.size())));
      for (const uint64_t dimension : tensor.dimensions) {
        put(file, tensor.name + " dimension", dimension);
      }
      put(file, tensor.name + " ggml type", tensor.ggml_type);
      put(file, tensor.name + " offset", tensor.offset.value_or(offset));
      offset += (tensor.data.size() + alignment - 1) / alignment * alignment;
    }
    for (const Tensor& tensor : tensors) {
      pad(file.bytes);
      file.bytes.insert(file.bytes.end(), tensor.data.begin(), tensor.data.end());
    }
    return file;
  }

  std::vector<Entry> metadata_;
};

}  // namespace lockstep::test
