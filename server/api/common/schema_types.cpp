#include "server/api/common/schema_types.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

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

// See SchemaTypes::referred_by().
const Json* find_referred(const Json& root, const Json& schema) {
  const auto reference = schema.find("$ref");
  const auto all = listed(schema, "allOf");
  const bool is_lone = reference == schema.end() && all.size() == 1;
  constexpr std::string_view kNotes[] = {"title", "description", "default", "examples",
                                         "deprecated"};
  for (const auto& [name, value] : schema.items()) {
    if (name == (is_lone ? "allOf" : "$ref")) continue;
    if (std::ranges::find(kNotes, name) == std::end(kNotes)) return nullptr;
  }
  if (is_lone) return &all.front();
  if (reference == schema.end() || !reference->is_string()) return nullptr;
  const auto& text = reference->get_ref<const std::string&>();
  if (!text.starts_with("#/")) return nullptr;
  try {
    const Json::json_pointer pointer(text.substr(1));
    return root.contains(pointer) ? &root.at(pointer) : nullptr;
  } catch (const Json::exception&) {
    return nullptr;
  }
}

}  // namespace

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

std::span<const Json> listed(const Json& schema, std::string_view name) {
  const auto found = schema.find(name);
  if (found == schema.end() || !found->is_array()) return {};
  return found->get_ref<const Json::array_t&>();
}

SchemaTypes::SchemaTypes(const Json& root) : root_(root) {}

unsigned SchemaTypes::of(const Json& schema) {
  ++visits_;
  if (!schema.is_object() || schema.empty()) return kAny;
  const auto known = known_.find(&schema);
  if (known != known_.end()) return known->second;
  unsigned bits = read(schema);
  for (const Json& part : listed(schema, "allOf")) bits &= of(part);
  known_.emplace(&schema, bits);
  return bits;
}

unsigned SchemaTypes::with_references(const Json& schema) {
  const auto types = [&](const Json& one) {
    const Json* const referred = referred_by(one);
    return of(referred != nullptr ? *referred : one);
  };
  unsigned bits = of(schema);
  if (!schema.is_object()) return bits;
  for (const Json& part : listed(schema, "allOf")) bits &= types(part);
  for (const char* const name : {"anyOf", "oneOf"}) {
    const auto ways = listed(schema, name);
    if (ways.empty()) continue;
    unsigned some = 0;
    for (const Json& way : ways) some |= types(way);
    bits &= some;
  }
  return bits;
}

const Json* SchemaTypes::referred_by(const Json& schema) {
  if (!schema.is_object() || schema.empty()) return nullptr;
  const auto known = referred_.find(&schema);
  if (known != referred_.end()) return known->second;
  return referred_.emplace(&schema, find_referred(root_, schema)).first->second;
}

unsigned SchemaTypes::read(const Json& schema) {
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
    const auto ways = listed(schema, name);
    if (ways.empty()) continue;
    unsigned bits = 0;
    for (const Json& way : ways) bits |= of(way);
    return bits;
  }
  return kAny;
}

}  // namespace lockstep
