// Lists of texts, and parts put together: see GrammarSource::Kind.
#include <algorithm>
#include <vector>

#include "engine/text/grammar/schema_reader.h"
#include "engine/text/grammar/sources.h"
#include "engine/text/grammar/token_trie.h"
#include "engine/text/utf8.h"

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
    if (name == "arguments") return read_arguments(draft_, part, pointer);
    if (name == "pairs") return read_pairs(draft_, part, pointer);
    if (part.size() != 1) return refuse(pointer);
    if (name == "literal" && value.is_string()) {
      return draft_.literal(value.get_ref<const std::string&>());
    }
    if (name == "regex" && value.is_string()) {
      return read_regex(draft_, value.get_ref<const std::string&>(), {});
    }
    if (name == "token" && value.is_number_unsigned()) {
      return draft_.literal(TokenTrie::control_path(value.get<TokenId>()));
    }
    if (name == "until" && value.is_string()) {
      return text_without(draft_, value.get_ref<const std::string&>());
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

// The most letters at the end of those of the mark before `at`, and `letter`, with which it begins.
size_t letters_begun(const std::vector<uint32_t>& mark, size_t at, uint32_t letter) {
  std::vector<uint32_t> text(mark.begin(), mark.begin() + static_cast<std::ptrdiff_t>(at));
  text.push_back(letter);
  for (size_t size = text.size(); size > 0; --size) {
    if (std::equal(text.end() - static_cast<std::ptrdiff_t>(size), text.end(), mark.begin())) {
      return size;
    }
  }
  return 0;
}

// Any text without the mark: a rule for each number of its letters that have come.
ExpressionId text_without_letters(GrammarDraft& draft, const std::vector<uint32_t>& mark) {
  constexpr size_t kLettersMax = 256;
  if (mark.size() > kLettersMax) {
    draft.fail("a mark that holds its first character again has at most {}", kLettersMax);
    return draft.nothing();
  }
  std::vector<RuleId> rules;
  for (size_t index = 0; index < mark.size(); ++index) {
    rules.push_back(draft.add_rule("(text without a mark)"));
  }
  for (size_t at = 0; at < mark.size(); ++at) {
    CharacterSet known;
    std::vector<ExpressionId> ways = {draft.empty()};
    for (size_t index = 0; index < mark.size(); ++index) {
      const uint32_t letter = mark[index];
      const auto place = mark.begin() + static_cast<std::ptrdiff_t>(index);
      if (std::find(mark.begin(), place, letter) != place) continue;  // it has come before
      const size_t begun = letters_begun(mark, at, letter);
      if (begun == 0) continue;
      known.add(letter, letter);
      if (begun == mark.size()) continue;
      ways.push_back(
          draft.sequence({draft.characters({{letter, letter}}), draft.rule(rules[begun])}));
    }
    known.normalize();
    const ExpressionId others = draft.characters(known.complement());
    if (at == 0) {
      draft.define(rules[0], draft.sequence({draft.repeat(others, 0, GrammarDraft::kUnlimited),
                                             draft.choice(ways)}));
      continue;
    }
    ways.push_back(draft.sequence({others, draft.rule(rules[0])}));
    draft.define(rules[at], draft.choice(ways));
  }
  return draft.rule(rules[0]);
}

PairFrame read_pair_frame(GrammarDraft& draft, const Json& part) {
  PairFrame frame = {.open = read_template(draft, part.at("open")),
                     .value_end = read_template(draft, part.at("value_end")),
                     .key_end = part.at("key_end").get<std::string>(),
                     .value_end_text = part.at("value_end_text").get<std::string>(),
                     .item_key = part.at("item_key").get<std::string>(),
                     .name_bytes_max = part.at("name_bytes_max").get<size_t>()};
  for (const Json& path : part.at("raw")) frame.raw.insert(path.get<std::string>());
  return frame;
}

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

ExpressionId text_without(GrammarDraft& draft, std::string_view mark) {
  std::vector<uint32_t> letters;
  while (!mark.empty()) {
    const DecodedCharacter letter = decode_utf8(mark);
    letters.push_back(letter.code_point);
    mark.remove_prefix(letter.size_bytes);
  }
  if (letters.empty()) {
    draft.fail("a mark must not be empty");
    return draft.nothing();
  }
  if (std::count(letters.begin(), letters.end(), letters.front()) != 1) {
    return text_without_letters(draft, letters);
  }
  const CharacterSet first = {{letters.front(), letters.front()}};
  const ExpressionId calm =
      draft.as_rule(draft.repeat(draft.characters(first.complement()), 0, GrammarDraft::kUnlimited),
                    "(text without the begin of a mark)");
  // The text behind so many letters of the mark, up to its next first letter.
  ExpressionId rest = draft.nothing();
  for (size_t index = letters.size(); index-- > 1;) {
    const CharacterSet next = {{letters[index], letters[index]}};
    CharacterSet others = first.complement().without(next);
    std::vector<ExpressionId> ways = {draft.empty(),
                                      draft.sequence({draft.characters(others), calm})};
    if (index + 1 < letters.size()) {
      ways.push_back(draft.sequence({draft.characters(next), rest}));
    }
    rest = draft.choice(ways);
  }
  const ExpressionId block = draft.sequence({draft.characters(first), rest});
  return draft.sequence({calm, draft.repeat(block, 0, GrammarDraft::kUnlimited)});
}

ExpressionId read_arguments(GrammarDraft& draft, const Json& part, std::string_view pointer) {
  const Json& values = part.at("values");
  const auto make_pieces = [&] {
    if (values == "json") return ValuePieces(draft);
    if (values == "python") return ValuePieces(draft, ValueForm::kPython);
    if (values == "pairs") return ValuePieces(draft, read_pair_frame(draft, part));
    return ValuePieces(draft, ValueForm::kMarked, read_template(draft, part.at("quote")),
                       part.at("quote_text").get<std::string>());
  };
  return SchemaReader(draft, part.at("arguments"), std::string(pointer) + "/arguments",
                      make_pieces())
      .read_arguments();
}

ExpressionId read_template(GrammarDraft& draft, const Json& part) {
  return TemplateReader(draft).read(part, "");
}

}  // namespace lockstep
