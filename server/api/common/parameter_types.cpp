#include "server/api/common/parameter_types.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "server/api/common/schema_types.h"
#include "server/api/common/text_marks.h"

namespace lockstep {
namespace {

// Whether a text can stand before the mark that ends it, as it is.
bool is_writable(const Json& value, const PairSyntax& pairs) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  const std::string_view end = pairs.quote_close.empty() ? pairs.value_end : pairs.quote_close;
  return !text.empty() && text.find(end) == std::string::npos;
}

// Whether all texts that the schema admits, and only such, are any texts that can be written as
// they are: constraints of another kind are those of JSON strings. `types`: all of the schema's.
bool is_raw(const Json& schema, unsigned types, const PairSyntax& pairs) {
  if (types != type_bits("string")) return false;
  bool raw = true;
  for (const auto& [name, value] : schema.items()) {
    if (name == "enum") {
      raw = raw && value.is_array() &&
            std::ranges::all_of(value, [&](const Json& one) { return is_writable(one, pairs); });
    } else if (name == "const") {
      raw = raw && is_writable(value, pairs);
    } else {
      constexpr std::string_view kHarmless[] = {"type",    "title",    "description",
                                                "default", "examples", "deprecated"};
      raw = raw && std::ranges::find(kHarmless, name) != std::end(kHarmless);
    }
  }
  return raw;
}

// The kinds of the values that a schema's pairs lead to. Where pairs hold pairs, the constraint of
// a turn inlines the same references: those that do not lead back to themselves.
class KindsReader {
 public:
  KindsReader(const Json& root, const PairSyntax& pairs, ParameterKinds& kinds)
      : types_(root), pairs_(pairs), kinds_(kinds) {}

  // `path`: of the value that the schema is of, with key_end behind it; empty: of all arguments.
  // Recursion is bounded by the depth of the JSON text and the number of its references.
  void read_pairs(const Json& schema, const std::string& path) {
    if (!schema.is_object() || overflowed_) return;
    // The grammar joins schemas that must all hold. This does not: it tells the types that one of
    // them names, and takes no text for one that is written as it is.
    const bool joins = !path.empty() && (schema.contains("allOf") || schema.contains("$ref"));
    joined_ += joins ? 1 : 0;
    read_members(schema, path);
    if (joins) {
      for (const Json& part : listed(schema, "allOf")) {
        follow(part, [&](const Json& one) { read_pairs(one, path); });
      }
    }
    joined_ -= joins ? 1 : 0;
  }

 private:
  void read_members(const Json& schema, const std::string& path) {
    const auto properties = schema.find("properties");
    if (properties != schema.end() && properties->is_object()) {
      for (const auto& [name, value] : properties->items()) add(path, name, value);
    }
    if (!is_nested() || path.empty()) return;
    const auto items = schema.find("items");
    if (items != schema.end()) add(path, pairs_.item_key, *items);
    const auto first_items = schema.find("prefixItems");
    if (first_items != schema.end() && first_items->is_array()) {
      for (const Json& one : *first_items) add(path, pairs_.item_key, one);
    }
    for (const char* const name : {"anyOf", "oneOf"}) {
      for (const Json& way : listed(schema, name)) {
        follow(way, [&](const Json& one) { read_pairs(one, path); });
      }
    }
  }

  bool is_nested() const { return !pairs_.item_key.empty(); }

  // References may make far more of a schema than its text: then nothing is known of it.
  void overflow() {
    overflowed_ = true;
    kinds_.clear();
  }

  // Adds the kind of the value of `name` at `path`.
  void add(const std::string& path, std::string_view name, const Json& schema) {
    if (!is_nested()) {
      const unsigned types = types_.of(schema);
      kinds_.emplace(name, ParameterKind{is_raw(schema, types, pairs_), types});
      return;
    }
    path_bytes_ += path.size() + name.size();
    if (path_bytes_ > kPathBytesMax) return overflow();
    follow(schema, [&](const Json& known) {
      if (overflowed_) return;
      ParameterKind kind = kind_of(known);
      kind.raw = kind.raw && joined_ == 0;
      std::string value_path = path;
      value_path += name;
      const auto [at, is_new] = kinds_.emplace(value_path, kind);
      // Several ways to write a value make sure only what they share.
      if (!is_new) at->second = {at->second.raw && kind.raw, at->second.types | kind.types};
      read_pairs(known, value_path.append(pairs_.key_end));
    });
  }

  // Read once, however many references lead to the schema.
  const ParameterKind& kind_of(const Json& schema) {
    const auto known = known_kinds_.find(&schema);
    if (known != known_kinds_.end()) return known->second;
    const ParameterKind kind{is_raw(schema, types_.of(schema), pairs_),
                             types_.with_references(schema)};
    return known_kinds_.emplace(&schema, kind).first->second;
  }

  // Calls `take` with the schema, or with the one that it refers to.
  template <typename Take>
  void follow(const Json& schema, const Take& take) {
    if (++steps_ > kStepsMax) return overflow();
    const Json* const referred = types_.referred_by(schema);
    const bool is_deep = open_.size() >= kReferencesMax;
    if (referred == nullptr || is_deep || !open_.insert(referred).second) return take(schema);
    follow(*referred, take);
    open_.erase(referred);
  }

  static constexpr size_t kStepsMax = 4096;
  static constexpr size_t kPathBytesMax = 65536;  // of all paths
  static constexpr size_t kReferencesMax = 32;    // within one another
  SchemaTypes types_;
  const PairSyntax& pairs_;
  ParameterKinds& kinds_;
  std::set<const Json*> open_;  // schemas that are being read through a reference
  std::map<const Json*, ParameterKind> known_kinds_;
  size_t steps_ = 0;
  size_t path_bytes_ = 0;
  size_t joined_ = 0;  // schemas around that must hold with others
  bool overflowed_ = false;
};

}  // namespace

ParameterKinds find_parameter_kinds(const Json& parameters, const PairSyntax& pairs) {
  ParameterKinds kinds;
  KindsReader(parameters, pairs, kinds).read_pairs(parameters, "");
  return kinds;
}

bool admits(const ParameterKind& kind, std::string_view type) {
  return (kind.types & type_bits(type)) != 0;
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
