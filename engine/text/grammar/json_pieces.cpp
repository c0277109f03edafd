#include "engine/text/grammar/json_pieces.h"

namespace lockstep {
namespace {

// Digits that a double holds for certain, and an exponent that it always holds beside them.
constexpr uint32_t kPieceDigitsMax = 15;
constexpr uint32_t kExponentDigitsMax = 2;
constexpr uint32_t kIntegerDigitsMax = 18;  // fits 64 bits

ExpressionId digit(GrammarDraft& draft) {
  return draft.bytes('0', '9');
}

ExpressionId whole_part(GrammarDraft& draft, uint32_t digits) {
  return draft.choice(
      {draft.literal("0"),
       draft.sequence({draft.bytes('1', '9'), draft.repeat(digit(draft), 0, digits - 1)})});
}

ExpressionId hex(GrammarDraft& draft, std::string_view digits = "0123456789abcdef") {
  std::vector<ExpressionId> parts;
  for (const char letter : digits) {
    const auto byte = static_cast<uint8_t>(letter);
    parts.push_back(draft.bytes(byte, byte));
    if (letter >= 'a') {
      const auto upper = static_cast<uint8_t>(letter - 'a' + 'A');
      parts.push_back(draft.bytes(upper, upper));
    }
  }
  return draft.choice(parts);
}

ExpressionId make_escape(GrammarDraft& draft) {
  std::vector<ExpressionId> letters;
  for (const char letter : std::string_view("\"\\/bfnrt")) {
    letters.push_back(draft.literal(std::string_view(&letter, 1)));
  }
  const ExpressionId any = hex(draft);
  const ExpressionId d = draft.choice({draft.literal("d"), draft.literal("D")});
  const ExpressionId no_surrogate =
      draft.choice({draft.sequence({hex(draft, "0123456789abcef"), any, any, any}),
                    draft.sequence({d, draft.bytes('0', '7'), any, any})});
  const ExpressionId pair = draft.sequence(
      {d, hex(draft, "89ab"), any, any, draft.literal("\\u"), d, hex(draft, "cdef"), any, any});
  letters.push_back(draft.sequence({draft.literal("u"), draft.choice({no_surrogate, pair})}));
  return draft.sequence({draft.literal("\\"), draft.choice(letters)});
}

ExpressionId make_value(GrammarDraft& draft) {
  return draft.choice({json_any_object(draft), json_any_array(draft), json_string(draft),
                       json_number(draft), draft.literal("true"), draft.literal("false"),
                       draft.literal("null")});
}

}  // namespace

ExpressionId json_string_character(GrammarDraft& draft) {
  return draft.choice({draft.bytes(0x20, 0x21), draft.bytes(0x23, 0x5B), draft.bytes(0x5D, 0x7E),
                       draft.plain_multibyte(),
                       draft.shared("(escape)", [&] { return make_escape(draft); })});
}

ExpressionId json_string(GrammarDraft& draft, uint32_t min, uint32_t max) {
  const ExpressionId quote = draft.literal("\"");
  return draft.sequence({quote, draft.repeat(json_string_character(draft), min, max), quote});
}

ExpressionId json_string(GrammarDraft& draft) {
  return draft.shared("(string)", [&] { return json_string(draft, 0, GrammarDraft::kUnlimited); });
}

ExpressionId json_number(GrammarDraft& draft) {
  return draft.shared("(number)", [&] {
    const ExpressionId sign = draft.choice({draft.literal("+"), draft.literal("-")});
    const ExpressionId fraction =
        draft.sequence({draft.literal("."), draft.repeat(digit(draft), 1, kPieceDigitsMax)});
    const ExpressionId exponent =
        draft.sequence({draft.choice({draft.literal("e"), draft.literal("E")}),
                        draft.optional(sign), draft.repeat(digit(draft), 1, kExponentDigitsMax)});
    return draft.sequence({draft.optional(draft.literal("-")), whole_part(draft, kPieceDigitsMax),
                           draft.optional(fraction), draft.optional(exponent)});
  });
}

ExpressionId json_integer(GrammarDraft& draft) {
  return draft.shared("(integer)", [&] {
    return draft.sequence(
        {draft.optional(draft.literal("-")), whole_part(draft, kIntegerDigitsMax)});
  });
}

ExpressionId json_any_value(GrammarDraft& draft) {
  return draft.shared("(value)", [&] { return make_value(draft); });
}

ExpressionId json_any_object(GrammarDraft& draft) {
  return draft.shared("(object)", [&] {
    const ExpressionId member =
        draft.sequence({json_string(draft), json_colon(draft), json_any_value(draft)});
    return draft.sequence({draft.literal("{"),
                           json_list(draft, member, 0, GrammarDraft::kUnlimited),
                           draft.literal("}")});
  });
}

ExpressionId json_any_array(GrammarDraft& draft) {
  return draft.shared("(array)", [&] {
    return draft.sequence({draft.literal("["),
                           json_list(draft, json_any_value(draft), 0, GrammarDraft::kUnlimited),
                           draft.literal("]")});
  });
}

ExpressionId json_comma(GrammarDraft& draft) {
  return draft.sequence({draft.literal(","), draft.optional(draft.literal(" "))});
}

ExpressionId json_colon(GrammarDraft& draft) {
  return draft.sequence({draft.literal(":"), draft.optional(draft.literal(" "))});
}

ExpressionId json_list(GrammarDraft& draft, ExpressionId part, uint32_t min, uint32_t max) {
  if (max == 0) return draft.empty();
  const uint32_t rest_max = max == GrammarDraft::kUnlimited ? GrammarDraft::kUnlimited : max - 1;
  const ExpressionId more = draft.sequence({json_comma(draft), part});
  const ExpressionId list =
      draft.sequence({part, draft.repeat(more, min == 0 ? 0 : min - 1, rest_max)});
  return min == 0 ? draft.optional(list) : list;
}

ExpressionId json_characters(GrammarDraft& draft, const CharacterSet& set) {
  if (draft.failed()) return draft.nothing();
  static const CharacterSet escaped = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  CharacterSet sorted = set;
  sorted.normalize();
  std::vector<ExpressionId> parts = {draft.characters(sorted.without(escaped))};
  const CharacterSet to_escape = sorted.within(escaped);
  for (const CharacterRange& range : to_escape.ranges()) {
    for (uint32_t character = range.low; character <= range.high; ++character) {
      constexpr std::string_view kLetters = "\"\\bfnrt";
      constexpr std::string_view kMeant = "\"\\\b\f\n\r\t";
      const size_t known = kMeant.find(static_cast<char>(character));
      parts.push_back(known != kMeant.npos ? draft.literal(fmt::format("\\{}", kLetters[known]))
                                           : draft.literal(fmt::format("\\u{:04x}", character)));
    }
  }
  return draft.choice(parts);
}

}  // namespace lockstep
