// Lists of texts, and parts put together: see GrammarSource::Kind.
#include <algorithm>
#include <vector>

#include "engine/text/grammar/sources.h"

namespace lockstep {
namespace {

class TemplateReader {
 public:
  explicit TemplateReader(GrammarDraft& draft) : draft_(draft) {}

  // Recursion is bounded by the depth of the JSON text.
  ExpressionId read(const Json& part, const std::string& pointer) {
    if (draft_.failed()) return draft_.nothing();
    if (part.is_array()) return draft_.sequence(read_list(part, pointer));
    if (!part.is_object() || part.empty()) return refuse(pointer);
    const std::string& name = part.begin().key();
    const Json& value = part.begin().value();
    if (name == "repeat") return read_repeat(part, pointer);
    if (part.size() != 1) return refuse(pointer);
    if (name == "literal" && value.is_string()) {
      return draft_.literal(value.get_ref<const std::string&>());
    }
    if (name == "regex" && value.is_string()) {
      return read_regex(draft_, value.get_ref<const std::string&>(), {});
    }
    if (name == "schema") return read_schema(draft_, value, pointer + "/schema");
    if (name == "any_of" && value.is_array()) {
      return draft_.choice(read_list(value, pointer + "/any_of"));
    }
    return refuse(pointer);
  }

 private:
  std::vector<ExpressionId> read_list(const Json& list, const std::string& pointer) {
    std::vector<ExpressionId> parts;
    for (size_t index = 0; index < list.size(); ++index) {
      parts.push_back(read(list[index], fmt::format("{}/{}", pointer, index)));
    }
    return parts;
  }

  ExpressionId read_repeat(const Json& part, const std::string& pointer) {
    uint32_t min = 0;
    uint32_t max = GrammarDraft::kUnlimited;
    ExpressionId separator = draft_.empty();
    for (const auto& [name, value] : part.items()) {
      const bool count =
          value.is_number_unsigned() && value.get<uint64_t>() <= GrammarDraft::kRepeatMax;
      if (name == "min" && count) {
        min = value.get<uint32_t>();
      } else if (name == "max" && count) {
        max = value.get<uint32_t>();
      } else if (name == "separator" && value.is_string()) {
        separator = draft_.literal(value.get_ref<const std::string&>());
      } else if (name != "repeat") {
        return refuse(pointer);
      }
    }
    if (min > max) return refuse(pointer);
    if (max == 0) return draft_.empty();
    const ExpressionId once = read(part.at("repeat"), pointer + "/repeat");
    const ExpressionId more =
        draft_.repeat(draft_.sequence({separator, once}), std::max(min, 1U) - 1,
                      max == GrammarDraft::kUnlimited ? max : max - 1);
    const ExpressionId list = draft_.sequence({once, more});
    return min == 0 ? draft_.optional(list) : list;
  }

  ExpressionId refuse(const std::string& pointer) {
    draft_.fail("at \"{}\": not a part of a template", pointer);
    return draft_.nothing();
  }

  GrammarDraft& draft_;
};

}  // namespace

ExpressionId read_choice(GrammarDraft& draft, const Json& list) {
  std::vector<ExpressionId> texts;
  if (!list.is_array() || list.empty()) draft.fail("it must be a list of at least one string");
  for (const Json& text : list) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty()) {
      draft.fail("every element must be a string that is not empty");
      break;
    }
    texts.push_back(draft.literal(text.get_ref<const std::string&>()));
  }
  return draft.choice(texts);
}

ExpressionId read_template(GrammarDraft& draft, const Json& part) {
  return TemplateReader(draft).read(part, "");
}

}  // namespace lockstep
