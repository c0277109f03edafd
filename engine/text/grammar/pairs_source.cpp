// An object as pairs of a key and a value between marks, as some families of models write the
// arguments of a call: <parameter=city>Bern</parameter>. The part of a template for it is
//   {"pairs": SCHEMA,          the object's; its properties in their order, and no others
//    "raw": ["city", …],       the properties whose values are texts, written as they are
//    "open": part, "raw_key_end": part, "json_key_end": part,   around a key, by its value's form
//    "json_key_ends": {"days": part, …},    instead of the last one, behind these keys
//    "value_open": part, "value_end": part,                     around a value
//    "value_end_text": "…",    the text of the last one, in which a raw value must not have it
//    "padding": "…",           right within both
//    "quoted_letters": "…",    a raw value holds these only between
//    "quote_open": "…", "quote_close": "…",                     which are empty if it needs none
//    "line": "…"}              behind each pair
#include <algorithm>
#include <set>
#include <vector>

#include "engine/text/grammar/json_pieces.h"
#include "engine/text/grammar/schema_reader.h"
#include "engine/text/grammar/sources.h"

namespace lockstep {
namespace {

class PairsReader {
 public:
  PairsReader(GrammarDraft& draft, const Json& part, std::string pointer)
      : draft_(draft),
        part_(part),
        schema_(part.at("pairs")),
        pointer_(std::move(pointer) + "/pairs"),
        values_(draft, schema_, pointer_) {}

  ExpressionId read() {
    if (!schema_.is_object()) return fail("a schema must be an object");
    if (const std::string_view* name = find_joining_keyword(schema_)) {
      return fail(
          fmt::format("\"{}\" is not supported where arguments are written one by one", *name));
    }
    const Json& raw = part_.at("raw");
    for (const Json& name : raw) raw_.insert(name.get<std::string>());
    if (const auto list = schema_.find("required"); list != schema_.end()) {
      for (const Json& name : list->is_array() ? *list : Json::array({1})) {
        if (!name.is_string()) return fail("\"required\" must be a list of strings");
        required_.insert(name.get<std::string>());
      }
    }
    for (const char* name : {"open", "raw_key_end", "json_key_end", "value_open", "value_end"}) {
      frame_.push_back(read_template(draft_, part_.at(name)));
    }
    return read_members();
  }

 private:
  ExpressionId read_members() {
    std::vector<ExpressionId> members;
    const auto properties = schema_.find("properties");
    if (properties != schema_.end()) {
      if (!properties->is_object()) return fail("\"properties\" must be an object");
      for (const auto& [name, value] : properties->items()) {
        if (draft_.failed()) return draft_.nothing();
        const ExpressionId member =
            draft_.as_rule(pair(name, value), pointer_ + "/properties" + pointer_step(name));
        members.push_back(required_.erase(name) > 0 ? member : draft_.optional(member));
      }
    }
    const Json anything = true;  // required, and not said what of
    for (const std::string& name : required_) members.push_back(pair(name, anything));
    values_.read_references();
    return draft_.sequence(members);
  }

  ExpressionId pair(const std::string& name, const Json& value) {
    const bool raw = raw_.contains(name);
    const ExpressionId padding = text("padding");
    return draft_.sequence({frame_[0], draft_.literal(name), key_end(name, raw), frame_[3], padding,
                            raw ? raw_value(value) : json_value(name, value), padding, frame_[4],
                            text("line")});
  }

  ExpressionId key_end(const std::string& name, bool raw) {
    const Json& own = part_.at("json_key_ends");
    const auto found = own.find(name);
    if (raw || found == own.end()) return frame_[raw ? 1 : 2];
    return read_template(draft_, *found);
  }

  ExpressionId json_value(const std::string& name, const Json& value) {
    return values_.read(value, pointer_ + "/properties" + pointer_step(name));
  }

  ExpressionId raw_value(const Json& value) {
    const auto choices = value.find("enum");
    if (choices != value.end()) {
      std::vector<ExpressionId> ways;
      for (const Json& choice : *choices) ways.push_back(raw_text(choice));
      return draft_.choice(ways);
    }
    const auto only = value.find("const");
    if (only != value.end()) return raw_text(*only);
    return draft_.shared("(text of an argument)", [&] {
      const std::string& quote_end = string("quote_close");
      if (quote_end.empty()) return text_without(draft_, string("value_end_text"));
      CharacterSet quoted;
      for (const char letter : string("quoted_letters")) {
        const auto character = static_cast<unsigned char>(letter);
        quoted.add(character, character);
      }
      quoted.normalize();
      return draft_.choice(
          {draft_.repeat(draft_.characters(quoted.complement()), 0, GrammarDraft::kUnlimited),
           in_quotes(text_without(draft_, quote_end))});
    });
  }

  ExpressionId raw_text(const Json& value) {
    const std::string& said = value.get_ref<const std::string&>();
    const bool quoted = said.find_first_of(string("quoted_letters")) != std::string::npos;
    return quoted ? in_quotes(draft_.literal(said)) : draft_.literal(said);
  }

  ExpressionId in_quotes(ExpressionId said) {
    return draft_.sequence({text("quote_open"), said, text("quote_close")});
  }

  const std::string& string(const char* name) const {
    return part_.at(name).get_ref<const std::string&>();
  }

  ExpressionId text(const char* name) { return draft_.literal(string(name)); }

  ExpressionId fail(std::string_view why) {
    draft_.fail("at \"{:.200}\": {}", pointer_, why);
    return draft_.nothing();
  }

  GrammarDraft& draft_;
  const Json& part_;
  const Json& schema_;
  std::string pointer_;
  SchemaReader values_;
  std::set<std::string> raw_;
  std::set<std::string> required_;
  std::vector<ExpressionId> frame_;
};

}  // namespace

ExpressionId read_pairs(GrammarDraft& draft, const Json& part, std::string_view pointer) {
  return PairsReader(draft, part, std::string(pointer)).read();
}

}  // namespace lockstep
