#include "engine/model/model_description.h"

#include <algorithm>
#include <type_traits>
#include <variant>

#include "engine/model/architecture.h"
#include "engine/model/gguf_file.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownElements = 8;

template <typename Element>
Json description_of(const std::vector<Element>& array) {
  Json first = Json::array();
  for (size_t index = 0; index < std::min(array.size(), kShownElements); ++index) {
    first.push_back(Element{array[index]});
  }
  if (array.size() <= kShownElements) return first;
  return {{"length", array.size()}, {"first", std::move(first)}};
}

Json description_of(const GgufValue& value) {
  return std::visit(
      [](const auto& held) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, GgufArray>) {
          return std::visit([](const auto& array) { return description_of(array); }, held);
        } else {
          return held;
        }
      },
      value);
}

uint64_t element_count(const GgufTensor& tensor) {
  return tensor.columns() * tensor.rows();
}

Json totals_by_format(const GgufFile& file) {
  Json result = Json::object();
  for (const FormatTraits& format : all_formats()) {
    uint64_t tensors = 0;
    uint64_t elements = 0;
    uint64_t bytes = 0;
    for (const GgufTensor& tensor : file.tensors()) {
      if (tensor.format != format.format) continue;
      ++tensors;
      elements += element_count(tensor);
      bytes += tensor.size_bytes;
    }
    if (tensors == 0) continue;
    result[std::string(format.name)] = {
        {"tensors", tensors}, {"elements", elements}, {"bytes", bytes}};
  }
  return result;
}

std::string_view format_name(const GgufTensor& tensor) {
  if (tensor.integer_bytes > 0) return tensor.integer_bytes == 4 ? "I32" : "I64";
  return traits(tensor.format).name;
}

Json description_of(const GgufTensor& tensor) {
  return {{"name", tensor.name}, {"format", format_name(tensor)}, {"dimensions", tensor.dimensions},
          {"part", tensor.part}, {"offset", tensor.offset},       {"bytes", tensor.size_bytes}};
}

// Whether the file's model can be run, and what of the file is not used then.
Json description_of_model(const GgufFile& file) {
  const auto model = build_model({.file = file});
  if (!model) return {{"is_read", false}, {"reason", model.error().message}};
  Json left_out = Json::array();
  for (const LeftOutTensors& each : model->left_out) {
    left_out.push_back({{"part", each.part}, {"tensors", each.tensors}, {"bytes", each.bytes}});
  }
  return {{"is_read", true},
          {"architecture", model->architecture},
          {"layers", model->layer_count},
          {"not_loaded", std::move(left_out)}};
}

}  // namespace

Json describe(const GgufFile& file) {
  uint64_t parameters = 0;
  Json tensors = Json::array();
  for (const GgufTensor& tensor : file.tensors()) {
    parameters += element_count(tensor);
    tensors.push_back(description_of(tensor));
  }
  for (const auto& [name, tensor] : file.integer_tensors()) {
    tensors.push_back(description_of(tensor));
  }
  Json metadata = Json::object();
  for (const auto& [key, value] : file.metadata()) metadata[key] = description_of(value);
  Json parts = Json::array();
  for (const std::filesystem::path& path : file.parts()) parts.push_back(path.string());

  const Json result = {{"model", description_of_model(file)},
                       {"parts", std::move(parts)},
                       {"version", file.version()},
                       {"bytes", file.size_bytes()},
                       {"parameters", parameters},
                       {"formats", totals_by_format(file)},
                       {"metadata", std::move(metadata)},
                       {"tensors", std::move(tensors)}};
  // Writing and reading it once puts a replacement in the place of what is not UTF-8.
  return Json::parse(result.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::vector<std::string_view> architecture_names() {
  std::vector<std::string_view> names;
  for (const auto& architectures : {all_architectures(), drafting_architectures()}) {
    for (const Architecture& architecture : architectures) names.push_back(architecture.name);
  }
  std::ranges::sort(names);
  return names;
}

Result<nlohmann::ordered_json> describe_model_file(const std::filesystem::path& path) {
  auto file = GgufFile::open(path);
  if (!file) return std::unexpected(file.error());
  return describe(*file);
}

}  // namespace lockstep
