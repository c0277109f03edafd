#include "engine/text/grammar/schema_reader.h"

#include <algorithm>

namespace lockstep {
namespace {

// Schemas within one another, references and merged ones included.
constexpr size_t kNestingMax = 128;

// In one schema, merged ones included: each is looked up among the others. Members of "properties"
// are none of them.
constexpr size_t kKeywordsMax = 2000;

// Keywords that decide on validity and cannot be turned into a grammar here.
constexpr std::string_view kUnsupported[] = {"not",
                                             "if",
                                             "dependentSchemas",
                                             "dependentRequired",
                                             "dependencies",
                                             "contains",
                                             "unevaluatedProperties",
                                             "unevaluatedItems",
                                             "$dynamicRef",
                                             "$recursiveRef",
                                             "patternProperties",
                                             "propertyNames",
                                             "additionalItems"};

constexpr std::string_view kJoining[] = {"$ref",
                                         "$dynamicRef",
                                         "allOf",
                                         "anyOf",
                                         "oneOf",
                                         "not",
                                         "if",
                                         "const",
                                         "enum",
                                         "minProperties",
                                         "maxProperties",
                                         "dependentRequired",
                                         "propertyNames",
                                         "dependencies",
                                         "dependentSchemas"};

constexpr std::string_view kObjectKeywords[] = {"properties", "required", "additionalProperties",
                                                "minProperties", "maxProperties"};
constexpr std::string_view kArrayKeywords[] = {"items", "prefixItems", "minItems", "maxItems"};
constexpr std::string_view kStringKeywords[] = {"minLength", "maxLength", "pattern", "format"};
constexpr std::string_view kNumberKeywords[] = {"minimum", "maximum", "exclusiveMinimum",
                                                "exclusiveMaximum", "multipleOf"};

enum TypeBit : unsigned {
  kObject = 1,
  kArray = 2,
  kString = 4,
  kNumber = 8,
  kInteger = 16,
  kBoolean = 32,
  kNull = 64,
  kAnyType = 127,
};

bool has_any(const Json& schema, std::span<const std::string_view> names) {
  return std::ranges::any_of(names, [&](std::string_view name) { return schema.contains(name); });
}

// Whether the schema says more than `keyword` and what does not decide on validity.
bool says_more_than(const Json& schema, std::string_view keyword) {
  constexpr std::string_view kOthers[] = {"type",  "enum",  "const", "anyOf",
                                          "oneOf", "allOf", "$ref"};
  if (has_any(schema, kObjectKeywords) || has_any(schema, kArrayKeywords) ||
      has_any(schema, kStringKeywords) || has_any(schema, kNumberKeywords)) {
    return true;
  }
  return std::ranges::any_of(
      kOthers, [&](std::string_view name) { return name != keyword && schema.contains(name); });
}

unsigned named_type(const Json& name) {
  for (size_t index = 0; index < std::size(kJsonTypes); ++index) {
    if (name.is_string() && name.get_ref<const std::string&>() == kJsonTypes[index]) {
      return 1U << index;
    }
  }
  return 0;
}

unsigned with_integers(unsigned types) {
  return (types & kNumber) != 0 ? types | kInteger : types;
}

std::optional<std::string> unescape_step(std::string_view step) {
  std::string text;
  for (size_t index = 0; index < step.size(); ++index) {
    if (step[index] == '~') {
      if (index + 1 >= step.size() || (step[index + 1] != '0' && step[index + 1] != '1')) {
        return std::nullopt;
      }
      text += step[++index] == '0' ? '~' : '/';
    } else if (step[index] == '%') {
      unsigned value = 0;
      const std::string_view digits = step.substr(index + 1, 2);
      for (const char digit : digits) {
        const size_t found = std::string_view("0123456789abcdefABCDEF").find(digit);
        if (found == std::string_view::npos) return std::nullopt;
        value = value * 16 + static_cast<unsigned>(found < 16 ? found : found - 6);
      }
      if (digits.size() < 2) return std::nullopt;
      text += static_cast<char>(value);
      index += 2;
    } else {
      text += step[index];
    }
  }
  return text;
}

}  // namespace

const std::string_view* find_joining_keyword(const Json& schema) {
  const auto* const found =
      std::ranges::find_if(kJoining, [&](std::string_view name) { return schema.contains(name); });
  return found == std::end(kJoining) ? nullptr : found;
}

std::string pointer_step(std::string_view name) {
  std::string step = "/";
  for (const char letter : name) {
    if (letter == '~') {
      step += "~0";
    } else if (letter == '/') {
      step += "~1";
    } else {
      step += letter;
    }
  }
  return step;
}

unsigned types_of_value(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object:
      return kObject;
    case Json::value_t::array:
      return kArray;
    case Json::value_t::string:
      return kString;
    case Json::value_t::boolean:
      return kBoolean;
    case Json::value_t::null:
      return kNull;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return kNumber | kInteger;
    default: {
      const double number = value.get<double>();
      return number == static_cast<double>(static_cast<int64_t>(std::clamp(number, -9e18, 9e18)))
                 ? kNumber | kInteger
                 : kNumber;
    }
  }
}

unsigned types_of(const Json& schema) {
  if (!schema.is_object()) return schema == false ? 0U : unsigned{kAnyType};
  unsigned types = kAnyType;
  if (const auto type = schema.find("type"); type != schema.end()) {
    types = 0;
    const Json list = type->is_array() ? *type : Json::array({*type});
    for (const Json& name : list) types |= with_integers(named_type(name));
  }
  unsigned values = 0;
  if (const auto constant = schema.find("const"); constant != schema.end()) {
    values = types_of_value(*constant);
  } else if (const auto list = schema.find("enum"); list != schema.end() && list->is_array()) {
    for (const Json& value : *list) values |= types_of_value(value);
  } else {
    values = kAnyType;
  }
  return types & values;
}

size_t count_bytes(const Json& value) {
  size_t bytes = sizeof(Json);
  if (value.is_string()) bytes += sizeof(std::string) + value.get_ref<const std::string&>().size();
  if (value.is_array()) {
    for (const Json& part : value) bytes += count_bytes(part);
  }
  if (value.is_object()) {
    for (const auto& [name, part] : value.get_ref<const Json::object_t&>()) {
      bytes += sizeof(std::string) + name.size() + count_bytes(part);
    }
  }
  return bytes;
}

ExpressionId read_schema(GrammarDraft& draft, const Json& schema, std::string_view pointer) {
  return SchemaReader(draft, schema, pointer).read();
}

ExpressionId SchemaReader::read() {
  const ExpressionId expression = read(root_, root_pointer_);
  read_references();
  return expression;
}

ExpressionId SchemaReader::read_arguments() {
  const bool one_by_one =
      pieces_.form() == ValueForm::kPython || pieces_.form() == ValueForm::kPairs;
  if (!one_by_one) return read();
  if (!root_.is_object() || (types_of(root_) & kObject) == 0) {
    fail(root_pointer_, "the arguments of a call are an object");
    return draft_.nothing();
  }
  if (const std::string_view* name = find_joining_keyword(root_)) {
    fail(root_pointer_, "\"{}\" is not supported where arguments are written one by one", *name);
    return draft_.nothing();
  }
  check_keywords(root_, root_pointer_);
  if (draft_.failed()) return draft_.nothing();
  const ExpressionId expression = read_object(root_, root_pointer_, /*keywords=*/true);
  read_references();
  return expression;
}

void SchemaReader::read_references() {
  // No path leads to what they are read for, so in pairs they are JSON.
  if (pieces_.form() == ValueForm::kPairs) pieces_.set_form(ValueForm::kJson);
  // Reading one may find more.
  while (!unread_.empty() && !draft_.failed()) {
    const std::string reference = std::move(unread_.back());
    unread_.pop_back();
    const Json* schema = resolve(reference, root_pointer_);
    if (schema == nullptr) break;
    draft_.define(references_.at(reference), read(*schema, root_pointer_ + reference.substr(1)));
  }
}

ExpressionId SchemaReader::read(const Json& schema, const Pointer& pointer) {
  if (draft_.failed() || !draft_.budget().take(0)) return draft_.nothing();
  if (schema.is_boolean()) {
    return schema.get<bool>() ? pieces_.any() : draft_.nothing();
  }
  if (!schema.is_object()) {
    fail(pointer, "a schema must be an object or a boolean");
    return draft_.nothing();
  }
  if (depth_ >= kNestingMax) {
    fail(pointer, "schemas are nested more than {} levels deep", kNestingMax);
    return draft_.nothing();
  }
  ++depth_;
  const ExpressionId expression = read_object_of_keywords(schema, pointer);
  --depth_;
  return expression;
}

ExpressionId SchemaReader::read_object_of_keywords(const Json& schema, const Pointer& pointer) {
  check_keywords(schema, pointer);
  if (draft_.failed()) return draft_.nothing();
  if (const Json* reference = find(schema, "$ref")) {
    if (!reference->is_string()) {
      fail(pointer + "/$ref", "it must be a string");
      return draft_.nothing();
    }
    if (!says_more_than(schema, "$ref")) {
      return read_reference(reference->get_ref<const std::string&>(), pointer + "/$ref");
    }
    return read(keep(flatten(schema, pointer)), pointer);
  }
  if (const Json* all = find(schema, "allOf")) {
    const bool alone = all->is_array() && all->size() == 1 && !says_more_than(schema, "allOf");
    if (alone) return read(all->front(), pointer + "/allOf/0");
    return read(keep(flatten(schema, pointer)), pointer);
  }
  const bool any = schema.contains("anyOf");
  if (any && schema.contains("oneOf")) {
    fail(pointer, "anyOf and oneOf in one schema are not supported");
    return draft_.nothing();
  }
  if (any) return read_alternatives(schema, "anyOf", pointer);
  if (schema.contains("oneOf")) return read_alternatives(schema, "oneOf", pointer);
  if (const Json* constant = find(schema, "const")) {
    return read_values(schema, Json::array({*constant}), pointer + "/const");
  }
  if (const Json* values = find(schema, "enum")) {
    return read_values(schema, *values, pointer + "/enum");
  }
  return read_types(schema, pointer);
}

const Json& SchemaReader::keep(Json schema) {
  draft_.budget().take(count_bytes(schema));
  return made_.emplace_back(std::move(schema));
}

void SchemaReader::check_keywords(const Json& schema, const Pointer& pointer) {
  if (schema.size() > kKeywordsMax) {
    fail(pointer, "a schema has {} keywords; at most {} are taken", schema.size(), kKeywordsMax);
    return;
  }
  for (const std::string_view name : kUnsupported) {
    const Json* value = find(schema, name);
    if (value == nullptr || *value == true || (value->is_object() && value->empty())) continue;
    fail(pointer + "/" + std::string(name), "this keyword is not supported");
  }
  const Json* unique = find(schema, "uniqueItems");
  if (unique != nullptr && *unique != false) {
    fail(pointer + "/uniqueItems", "this keyword is not supported");
  }
  const Json* multiple = find(schema, "multipleOf");
  const Json* type = find(schema, "type");
  if (type != nullptr && type->is_array() && type->size() > std::size(kJsonTypes)) {
    fail(pointer + "/type", "at most {} types can be listed", std::size(kJsonTypes));
  }
  const bool integers = type != nullptr && *type == "integer";
  if (multiple != nullptr && !(integers && multiple->is_number() && *multiple == 1)) {
    fail(pointer + "/multipleOf", "this keyword is not supported");
  }
}

const Json* SchemaReader::find(const Json& schema, std::string_view name) const {
  const auto found = schema.find(name);
  return found == schema.end() ? nullptr : &*found;
}

uint32_t SchemaReader::read_count(const Json& schema, std::string_view name, uint32_t fallback,
                                  const Pointer& pointer) {
  const Json* value = find(schema, name);
  if (value == nullptr) return fallback;
  const bool whole = value->is_number() && (types_of_value(*value) & kInteger) != 0;
  const double number = whole ? value->get<double>() : -1;
  if (number < 0 || number > GrammarDraft::kRepeatMax) {
    fail(pointer + "/" + std::string(name), "it must be an integer from 0 to {}, not {:.60}",
         GrammarDraft::kRepeatMax, value->dump());
    return fallback;
  }
  return static_cast<uint32_t>(number);
}

const Json* SchemaReader::resolve(const std::string& reference, const Pointer& pointer) {
  const Json* at = &root_;
  if (!reference.starts_with('#') || (reference.size() > 1 && reference[1] != '/')) {
    fail(pointer,
         "only references within the schema (\"#\", \"#/$defs/name\") are supported, not "
         "\"{:.100}\"",
         reference);
    return nullptr;
  }
  std::string_view rest = std::string_view(reference).substr(1);
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const std::string_view step = rest.substr(0, rest.find('/'));
    rest.remove_prefix(step.size());
    const auto name = unescape_step(step);
    const Json* next = nullptr;
    if (name && at->is_object()) next = find(*at, *name);
    if (name && at->is_array() && name->size() < 8 && !name->empty() &&
        name->find_first_not_of("0123456789") == std::string::npos) {
      const size_t index = std::stoul(*name);
      next = index < at->size() ? &(*at)[index] : nullptr;
    }
    if (next == nullptr || !draft_.budget().take(0)) {
      fail(pointer, "\"{:.100}\" leads nowhere in the schema", reference);
      return nullptr;
    }
    at = next;
  }
  return at;
}

ExpressionId SchemaReader::read_reference(const std::string& reference, const Pointer& pointer) {
  const bool in_pairs = pieces_.form() == ValueForm::kPairs;
  const auto found = references_.find(reference);
  if (found != references_.end() && !in_pairs) return draft_.rule(found->second);
  const Json* const schema = resolve(reference, pointer);
  if (schema == nullptr) return draft_.nothing();
  // A rule is JSON, which in pairs is right only for what leads back to itself.
  if (in_pairs && !recursive_.contains(schema)) {
    if (inlined_.insert(schema).second) {
      const ExpressionId expression = read(*schema, root_pointer_ + reference.substr(1));
      inlined_.erase(schema);
      return expression;
    }
    recursive_.insert(schema);
  }
  if (found != references_.end()) return draft_.rule(found->second);
  const RuleId rule = draft_.add_rule(reference);
  references_.emplace(reference, rule);
  unread_.push_back(reference);
  return draft_.rule(rule);
}

ExpressionId SchemaReader::read_alternatives(const Json& schema, const std::string& keyword,
                                             const Pointer& pointer) {
  const Json& list = schema.at(keyword);
  const Pointer at = pointer + "/" + keyword;
  if (!list.is_array() || list.empty()) {
    fail(at, "it must be a list of at least one schema");
    return draft_.nothing();
  }
  if (keyword == "oneOf") {
    for (size_t left = 0; left < list.size(); ++left) {
      for (size_t right = left + 1; right < list.size() && !draft_.failed(); ++right) {
        if (are_disjoint(list[left], list[right], at)) continue;
        fail(at,
             "a value may be valid for both {} and {}; use anyOf, or let them differ by type "
             "or by a required property with const",
             left, right);
      }
    }
  }
  const bool more = says_more_than(schema, keyword);
  if (!draft_.budget().look()) return draft_.nothing();
  Json base = Json::object();
  for (const auto& [name, value] : schema.items()) {
    if (name != keyword && name != "$defs" && name != "definitions") base[name] = value;
  }
  std::vector<ExpressionId> parts;
  for (size_t index = 0; index < list.size() && !draft_.failed(); ++index) {
    const Pointer place = fmt::format("{}/{}", at, index);
    parts.push_back(read(more ? keep(merge(base, list[index], place)) : list[index], place));
  }
  return draft_.choice(parts);
}

// The values that the schema's type admits.
ExpressionId SchemaReader::read_values(const Json& schema, const Json& values,
                                       const Pointer& pointer) {
  if (!values.is_array() || values.empty()) {
    fail(pointer, "it must be a list of at least one value");
    return draft_.nothing();
  }
  Json others = schema;
  for (const char* known : {"type", "const", "enum"}) others.erase(known);
  if (says_more_than(others, "")) {
    fail(pointer, "beside it only type is supported");
    return draft_.nothing();
  }
  if (schema.contains("const") && schema.contains("enum")) {
    const Json& list = schema.at("enum");
    if (std::ranges::find(list, schema.at("const")) == list.end()) return draft_.nothing();
  }
  Json type = Json::object();
  if (schema.contains("type")) type["type"] = schema.at("type");
  const unsigned types = types_of(type);
  std::vector<ExpressionId> parts;
  for (const Json& value : values) {
    if ((types_of_value(value) & types) == 0) continue;
    // An integer where only integers are admitted, not 1.0.
    parts.push_back(pieces_.exactly(value));
  }
  return draft_.choice(parts);
}

ExpressionId SchemaReader::read_types(const Json& schema, const Pointer& pointer) {
  std::vector<std::string> types;
  if (const Json* type = find(schema, "type")) {
    const Json list = type->is_array() ? *type : Json::array({*type});
    for (const Json& name : list) {
      if (named_type(name) == 0) {
        fail(pointer + "/type", "{:.60} is not a type", name.dump());
        return draft_.nothing();
      }
      types.push_back(name.get<std::string>());
    }
  } else {
    // The type that a keyword concerns; other types would be valid as well.
    if (has_any(schema, kObjectKeywords)) types.emplace_back("object");
    if (has_any(schema, kArrayKeywords)) types.emplace_back("array");
    if (has_any(schema, kStringKeywords)) types.emplace_back("string");
    if (has_any(schema, kNumberKeywords)) types.emplace_back("number");
    if (types.empty()) return pieces_.any();
  }
  const bool numbers = std::ranges::find(types, "number") != types.end();
  std::vector<ExpressionId> parts;
  for (const std::string& type : types) {
    if (type == "integer" && numbers) continue;
    parts.push_back(read_type(schema, type, pointer));
  }
  return draft_.choice(parts);
}

ExpressionId SchemaReader::read_type(const Json& schema, std::string_view type,
                                     const Pointer& pointer) {
  if (type == "object") return read_object(schema, pointer);
  if (type == "array") return read_array(schema, pointer);
  if (type == "string") return read_string(schema, pointer);
  if (type == "number") return read_number(schema, /*integer=*/false, pointer);
  if (type == "integer") return read_number(schema, /*integer=*/true, pointer);
  if (type == "boolean") return pieces_.boolean();
  return pieces_.null();
}

}  // namespace lockstep
