#include "tests/engine/runtime/quantized_copy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "engine/model/gguf_file.h"
#include "tests/engine/model/gguf_writer.h"

namespace lockstep {
namespace {

constexpr size_t kBlock = 32;

bool is_quantized(const GgufTensor& tensor) {
  const std::string_view name = tensor.name;
  for (const std::string_view unfit : {"norm", "ffn_gate_inp", "position_embd", "token_types"}) {
    if (name.find(unfit) != std::string_view::npos) return false;
  }
  return name.ends_with(".weight") && tensor.dimensions.size() > 1 &&
         tensor.format == Format::kF32 && tensor.columns() % kBlock == 0;
}

// As the gguf package does it: codes are rounded to the nearest, halves away from zero.
std::vector<std::byte> quantized(std::span<const float> values) {
  std::vector<std::byte> bytes;
  for (; !values.empty(); values = values.subspan(kBlock)) {
    float largest = 0;
    for (const float value : values.first(kBlock)) largest = std::max(largest, std::abs(value));
    const float scale = largest / 127;
    const float inverse = scale == 0 ? 0 : 1 / scale;
    const uint16_t half = float_to_half(scale);
    std::array<int8_t, kBlock> codes;
    for (size_t index = 0; index < kBlock; ++index) {
      codes[index] = static_cast<int8_t>(std::round(values[index] * inverse));
    }
    const auto scale_bytes = std::as_bytes(std::span(&half, 1));
    const auto code_bytes = std::as_bytes(std::span(codes));
    bytes.insert(bytes.end(), scale_bytes.begin(), scale_bytes.end());
    bytes.insert(bytes.end(), code_bytes.begin(), code_bytes.end());
  }
  return bytes;
}

void add_metadata(test::GgufWriter& writer, const std::string& key, const GgufValue& value) {
  std::visit(
      [&]<typename Value>(const Value& held) {
        if constexpr (std::is_same_v<Value, GgufArray>) {
          std::visit([&](const auto& elements) { writer.add_array(key, elements); }, held);
        } else {
          writer.add(key, held);
        }
      },
      value);
}

}  // namespace

void write_quantized_copy(const std::filesystem::path& path, const std::filesystem::path& copy) {
  const auto file = GgufFile::open(path);
  if (!file) throw std::runtime_error(file.error().message);
  test::GgufWriter writer;
  for (const auto& [key, value] : file->metadata()) add_metadata(writer, key, value);
  for (const GgufTensor& tensor : file->tensors()) {
    const auto values = read_tensor(*file, tensor);
    if (!values) throw std::runtime_error(values.error().message);
    if (is_quantized(tensor)) {
      writer.add_tensor(tensor.name, Format::kQ8_0, tensor.dimensions, quantized(*values));
    } else {
      writer.add_tensor(tensor.name, tensor.dimensions, *values);
    }
  }
  for (const auto& [name, tensor] : file->integer_tensors()) {
    const auto values = file->read_integers(name);
    if (!values) throw std::runtime_error(values.error().message);
    constexpr uint32_t kI64 = 27;
    const auto bytes = std::as_bytes(std::span(values->value()));
    writer.tensors.push_back({name, kI64, tensor.dimensions, {bytes.begin(), bytes.end()}, {}, {}});
  }
  writer.write(copy);
}

}  // namespace lockstep
