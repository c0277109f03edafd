// Schemas that must hold together, or must not hold together, as far as that can be said of their
// keywords.
#include <algorithm>
#include <set>

#include "engine/text/grammar/schema_reader.h"

namespace lockstep {
namespace {

bool is_lower_bound(std::string_view name) {
  return name.starts_with("min") || name == "exclusiveMinimum";
}

bool is_upper_bound(std::string_view name) {
  return name.starts_with("max") || name == "exclusiveMaximum";
}

bool is_annotation(std::string_view name) {
  constexpr std::string_view kNames[] = {"title",         "description",      "default",
                                         "examples",      "example",          "$schema",
                                         "$id",           "$comment",         "$defs",
                                         "definitions",   "$anchor",          "deprecated",
                                         "readOnly",      "writeOnly",        "discriminator",
                                         "xml",           "contentMediaType", "contentEncoding",
                                         "contentSchema", "externalDocs",     "nullable"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

Json as_list(const Json& value) {
  return value.is_array() ? value : Json::array({value});
}

// The types in both lists; an integer is a number.
Json common_types(const Json& left, const Json& right) {
  Json both = Json::array();
  const auto has = [](const Json& list, std::string_view name) {
    return std::ranges::find(list, Json(name)) != list.end();
  };
  const Json ours = as_list(left);
  const Json theirs = as_list(right);
  for (const Json& name : ours) {
    if (has(theirs, name.is_string() ? name.get<std::string>() : "") ||
        (name == "integer" && has(theirs, "number"))) {
      both.push_back(name);
    }
  }
  if (has(ours, "number") && !has(ours, "integer") && has(theirs, "integer") &&
      !has(theirs, "number")) {
    both.push_back("integer");
  }
  return both;
}

// A text that equal values have in common: 1 and 1.0 are equal.
std::string key_of(const Json& value) {
  return value.is_number() ? fmt::format("{}", value.get<double>()) : value.dump();
}

Json common_values(const Json& left, const Json& right) {
  std::set<std::string> known;
  for (const Json& value : right) known.insert(key_of(value));
  Json both = Json::array();
  for (const Json& value : left) {
    if (known.contains(key_of(value))) both.push_back(value);
  }
  return both;
}

// The values that a schema lists, if it lists them.
std::optional<Json> listed_values(const Json& schema) {
  if (!schema.is_object()) return std::nullopt;
  if (schema.contains("const")) return Json::array({schema.at("const")});
  const auto values = schema.find("enum");
  if (values == schema.end() || !values->is_array()) return std::nullopt;
  return *values;
}

// A schema for what is valid for both: a list that grows, so that no depth does.
Json both(Json schema, const Json& other) {
  if (schema.is_object() && schema.size() == 1 && schema.contains("allOf") &&
      schema["allOf"].is_array()) {
    schema["allOf"].push_back(other);
    return schema;
  }
  Json list = Json::array();
  list.push_back(std::move(schema));
  list.push_back(other);
  return {{"allOf", std::move(list)}};
}

bool requires_member(const Json& schema, std::string_view name) {
  const auto required = schema.find("required");
  return required != schema.end() && required->is_array() &&
         std::ranges::find(*required, Json(name)) != required->end();
}

const Json* properties_of(const Json& schema) {
  const auto found = schema.find("properties");
  return found != schema.end() && found->is_object() ? &*found : nullptr;
}

}  // namespace

Json SchemaReader::flatten(const Json& schema, const Pointer& pointer) {
  constexpr size_t kDepthMax = 32;
  if (!schema.is_object() || (!schema.contains("$ref") && !schema.contains("allOf"))) {
    return schema;
  }
  if (++depth_ > kDepthMax || !draft_.budget().look()) {
    fail(pointer, "references and allOf are nested too deeply to be merged");
    --depth_;
    return Json::object();
  }
  check_keywords(schema, pointer);
  if (draft_.failed()) {
    --depth_;
    return Json::object();
  }
  Json merged = schema;
  merged.erase("$ref");
  merged.erase("allOf");
  if (const Json* reference = find(schema, "$ref"); reference && reference->is_string()) {
    const auto* target = resolve(reference->get_ref<const std::string&>(), pointer + "/$ref");
    if (target != nullptr) merged = merge(*target, merged, pointer);
  }
  if (const Json* all = find(schema, "allOf")) {
    if (!all->is_array()) fail(pointer + "/allOf", "it must be a list");
    for (size_t index = 0; index < all->size() && !draft_.failed(); ++index) {
      merged = merge(merged, (*all)[index], fmt::format("{}/allOf/{}", pointer, index));
    }
  }
  --depth_;
  return merged;
}

Json SchemaReader::merge(const Json& left, const Json& right, const Pointer& pointer) {
  if (!draft_.budget().look()) return false;
  Json merged = flatten(left, pointer);
  const Json other = flatten(right, pointer);
  if (merged == false || other == false) return false;
  if (merged == true) return other;
  if (other == true) return merged;
  if (!merged.is_object() || !other.is_object()) {
    fail(pointer, "a schema must be an object or a boolean");
    return false;
  }
  check_keywords(merged, pointer);
  check_keywords(other, pointer);
  check_additional(merged, other, pointer);
  check_additional(other, merged, pointer);
  // All that was ever added to a merged schema, and so all that it holds.
  if (!draft_.budget().take(count_bytes(other))) return false;
  for (const auto& [name, value] : other.items()) {
    if (draft_.failed() || !draft_.budget().look()) return false;
    merge_keyword(merged, name, value, pointer);
  }
  return merged;
}

// One side's rule on additional members must concern none of the other side's.
void SchemaReader::check_additional(const Json& one, const Json& other, const Pointer& pointer) {
  const Json* additional = find(one, "additionalProperties");
  const Json* members = properties_of(other);
  if (additional == nullptr || *additional == true || members == nullptr) return;
  const Json* own = properties_of(one);
  for (const auto& [name, value] : members->items()) {
    if (!draft_.budget().look()) return;
    if (own != nullptr && own->contains(name)) continue;
    fail(pointer,
         "additionalProperties and the property \"{:.60}\" of another schema that must "
         "hold as well are not supported together",
         name);
    return;
  }
}

void SchemaReader::merge_keyword(Json& into, const std::string& name, const Json& value,
                                 const Pointer& pointer) {
  const auto found = into.find(name);
  if (found == into.end()) {
    into[name] = value;
    return;
  }
  Json& known = *found;
  if (known == value || is_annotation(name)) return;
  if (name == "type") {
    known = common_types(known, value);
  } else if (name == "required" && known.is_array() && value.is_array()) {
    for (const Json& member : value) {
      if (!draft_.budget().look()) return;
      if (std::ranges::find(known, member) == known.end()) known.push_back(member);
    }
  } else if (name == "properties" && known.is_object() && value.is_object()) {
    for (const auto& [member, schema] : value.items()) {
      if (!draft_.budget().look()) return;
      const auto same = known.find(member);
      if (same == known.end()) {
        known[member] = schema;
      } else if (*same != schema) {
        *same = both(std::move(*same), schema);
      }
    }
  } else if (name == "enum" && known.is_array() && value.is_array()) {
    known = common_values(known, value);
  } else if (is_lower_bound(name) && known.is_number() && value.is_number()) {
    known = std::max(known, value);
  } else if (is_upper_bound(name) && known.is_number() && value.is_number()) {
    known = std::min(known, value);
  } else if (name == "items") {
    known = both(std::move(known), value);
  } else if (name == "additionalProperties" && (known == true || value == true)) {
    if (known == true) known = value;
  } else {
    fail(pointer + "/" + name,
         "this keyword in several schemas that must hold together is not "
         "supported");
  }
}

bool SchemaReader::are_disjoint(const Json& left, const Json& right, const Pointer& pointer) {
  const Json ours = flatten(left, pointer);
  const Json theirs = flatten(right, pointer);
  if (draft_.failed() || !draft_.budget().look()) return true;
  if ((types_of(ours) & types_of(theirs)) == 0) return true;
  const auto our_values = listed_values(ours);
  const auto their_values = listed_values(theirs);
  if (our_values && their_values) return common_values(*our_values, *their_values).empty();
  const bool objects = types_of(ours) == 1 && types_of(theirs) == 1;
  return objects && have_disjoint_members(ours, theirs, pointer);
}

bool SchemaReader::have_disjoint_members(const Json& left, const Json& right,
                                         const Pointer& pointer) {
  const Json* ours = properties_of(left);
  const Json* theirs = properties_of(right);
  if (ours == nullptr || theirs == nullptr) return false;
  const auto lacks_what_the_other_requires = [&](const Json& closed, const Json& known,
                                                 const Json& other) {
    const Json* additional = find(closed, "additionalProperties");
    const Json* required = find(other, "required");
    if (additional == nullptr || *additional != false || required == nullptr) return false;
    std::set<std::string_view> names;
    for (const auto& member : known.items()) names.insert(member.key());
    return std::ranges::any_of(*required, [&](const Json& name) {
      return name.is_string() && !names.contains(name.get_ref<const std::string&>());
    });
  };
  if (lacks_what_the_other_requires(left, *ours, right) ||
      lacks_what_the_other_requires(right, *theirs, left)) {
    return true;
  }
  for (const auto& [name, schema] : ours->items()) {
    if (!draft_.budget().look()) return true;
    const auto same = theirs->find(name);
    if (same == theirs->end() || !requires_member(left, name) || !requires_member(right, name)) {
      continue;
    }
    const auto our_values = listed_values(flatten(schema, pointer));
    const auto their_values = listed_values(flatten(*same, pointer));
    if (our_values && their_values && common_values(*our_values, *their_values).empty()) {
      return true;
    }
  }
  return false;
}

}  // namespace lockstep
