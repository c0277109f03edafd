// An object as pairs of a key and a value between marks, as some families of models write the
// arguments of a call: <parameter=city>Bern</parameter>. The part of a template for it is
//   {"pairs": SCHEMA,          the object's; its properties in their order, and no others
//    "raw": ["city", …],       the properties whose values are texts, written as they are
//    "open": part, "raw_key_end": part, "json_key_end": part,   around a key, by its value's form
//    "json_key_ends": {"days": part, …},    instead of the last one, behind these keys
//    "value_open": part, "value_end": part,                     around a value
//    "value_end_text": "…",    the text of the last one, in which a raw value must not have it
//    "padding": "…",           right within both
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
    if (choices != value.end()) return read_choice(draft_, *choices);
    const auto only = value.find("const");
    if (only != value.end()) return draft_.literal(only->get_ref<const std::string&>());
    const std::string& end = part_.at("value_end_text").get_ref<const std::string&>();
    return draft_.shared("(text of an argument)", [&] { return text_without(draft_, end); });
  }

  ExpressionId text(const char* name) {
    return draft_.literal(part_.at(name).get_ref<const std::string&>());
  }

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
