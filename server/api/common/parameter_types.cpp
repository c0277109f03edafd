#include "server/api/common/parameter_types.h"

#include <algorithm>
#include <array>
#include <utility>

#include "server/api/common/text_marks.h"

namespace lockstep {
namespace {

constexpr std::array<std::pair<std::string_view, unsigned>, 7> kTypes = {{{"string", 1U << 0U},
                                                                          {"integer", 1U << 1U},
                                                                          {"number", 3U << 1U},
                                                                          {"boolean", 1U << 3U},
                                                                          {"null", 1U << 4U},
                                                                          {"object", 1U << 5U},
                                                                          {"array", 1U << 6U}}};
constexpr unsigned kAny = ~0U;

unsigned type_bits(std::string_view name) {
  for (const auto& [known, bits] : kTypes) {
    if (known == name) return bits;
  }
  return kAny;
}

unsigned type_of_value(const Json& value) {
  if (value.is_string()) return type_bits("string");
  if (value.is_boolean()) return type_bits("boolean");
  if (value.is_null()) return type_bits("null");
  if (value.is_object()) return type_bits("object");
  if (value.is_array()) return type_bits("array");
  return value.is_number_integer() ? type_bits("integer") : type_bits("number");
}

// All types where the schema does not say: by a reference, or not at all. Recursion is bounded by
// the depth of the JSON text.
unsigned types_of(const Json& schema) {
  if (!schema.is_object()) return kAny;
  if (const auto type = schema.find("type"); type != schema.end()) {
    if (type->is_string()) return type_bits(type->get_ref<const std::string&>());
    unsigned bits = 0;
    for (const Json& one : *type) {
      bits |= one.is_string() ? type_bits(one.get_ref<const std::string&>()) : kAny;
    }
    return bits == 0 ? kAny : bits;
  }
  if (const auto values = schema.find("enum"); values != schema.end()) {
    unsigned bits = 0;
    for (const Json& value : *values) bits |= type_of_value(value);
    return bits;
  }
  if (const auto value = schema.find("const"); value != schema.end()) return type_of_value(*value);
  for (const char* const name : {"anyOf", "oneOf"}) {
    const auto ways = schema.find(name);
    if (ways == schema.end() || !ways->is_array()) continue;
    unsigned bits = 0;
    for (const Json& way : *ways) bits |= types_of(way);
    return bits;
  }
  return kAny;
}

// Whether a text can stand before the mark as it is.
bool is_writable(const Json& value, std::string_view end) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return !text.empty() && text.find(end) == std::string::npos;
}

// Whether all texts that the schema admits, and only such, are any texts that can be written as
// they are: constraints of another kind are those of JSON strings.
bool is_raw(const Json& schema, const PairSyntax& pairs) {
  if (types_of(schema) != type_bits("string")) return false;
  bool raw = true;
  for (const auto& [name, value] : schema.items()) {
    if (name == "enum") {
      raw = raw && value.is_array() && std::ranges::all_of(value, [&](const Json& one) {
              return is_writable(one, pairs.value_end);
            });
    } else if (name == "const") {
      raw = raw && is_writable(value, pairs.value_end);
    } else {
      constexpr std::string_view kHarmless[] = {"type",    "title",    "description",
                                                "default", "examples", "deprecated"};
      raw = raw && std::ranges::find(kHarmless, name) != std::end(kHarmless);
    }
  }
  return raw;
}

}  // namespace

ParameterKinds find_parameter_kinds(const Json& parameters, const PairSyntax& pairs) {
  ParameterKinds kinds;
  if (!parameters.is_object()) return kinds;
  const auto properties = parameters.find("properties");
  if (properties == parameters.end() || !properties->is_object()) return kinds;
  for (const auto& [name, schema] : properties->items()) {
    kinds.emplace(name, ParameterKind{is_raw(schema, pairs), types_of(schema)});
  }
  return kinds;
}

std::string_view type_name(const ParameterKind& kind) {
  for (const std::string_view name : {"number", "boolean", "null", "array"}) {
    if (kind.types != 0 && (kind.types & ~type_bits(name)) == 0) return name;
  }
  return "object";
}

std::string argument_value(std::string_view text, const ParameterKind& kind) {
  const std::string_view inner = without_space(text);
  if (!kind.raw) {
    const auto value = parse_json(inner);
    const bool whole_number =
        value && value->is_number() && (kind.types & type_bits("number")) != 0;
    if (value && (whole_number || (type_of_value(*value) & kind.types) != 0)) {
      return std::string(inner);
    }
    constexpr std::pair<std::string_view, std::string_view> kPython[] = {
        {"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (const auto& [word, json] : kPython) {
      const unsigned type = type_bits(json == "null" ? "null" : "boolean");
      if (inner == word && (kind.types & type) != 0) return std::string(json);
    }
  }
  std::string json = "\"";
  append_json_string(text, json);
  return json + '"';
}

void append_json_string(std::string_view text, std::string& json) {
  for (const char letter : text) {
    switch (letter) {
      case '"':
        json += "\\\"";
        break;
      case '\\':
        json += "\\\\";
        break;
      case '\n':
        json += "\\n";
        break;
      case '\t':
        json += "\\t";
        break;
      case '\r':
        json += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(letter) < 0x20) {
          json += fmt::format("\\u{:04x}", static_cast<unsigned>(letter));
        } else {
          json += letter;
        }
    }
  }
}

}  // namespace lockstep
