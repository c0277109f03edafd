#include "engine/text/grammar/json_pieces.h"

#include <algorithm>
#include <cmath>
#include <vector>

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

// `kinds`: of those with one letter.
ExpressionId make_escape(GrammarDraft& draft, std::string_view kinds) {
  std::vector<ExpressionId> letters;
  for (const char letter : kinds) {
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

ExpressionId string_character(GrammarDraft& draft, ExpressionId escape) {
  return draft.choice({draft.bytes(0x20, 0x21), draft.bytes(0x23, 0x5B), draft.bytes(0x5D, 0x7E),
                       draft.plain_multibyte(), escape});
}

ExpressionId make_value(GrammarDraft& draft) {
  return draft.choice({json_any_object(draft), json_any_array(draft), json_string(draft),
                       json_number(draft), draft.literal("true"), draft.literal("false"),
                       draft.literal("null")});
}

constexpr size_t kDigitsMax = 15;  // that a double holds for certain

// Numbers that are not negative between two bounds that are not.
class Magnitudes {
 public:
  Magnitudes(GrammarDraft& draft, const DecimalBound& low, const std::optional<DecimalBound>& high,
             size_t whole_digits, size_t fraction_digits)
      : draft_(draft),
        low_(low),
        high_(high.value_or(DecimalBound{})),
        whole_digits_(high ? std::min(high->whole.size(), whole_digits) : whole_digits),
        fraction_digits_(fraction_digits),
        has_high_(high && high->whole.size() <= whole_digits) {}

  ExpressionId make() {
    std::vector<ExpressionId> parts;
    for (size_t size = low_.whole.size(); size <= whole_digits_; ++size) {
      const bool at_high = has_high_ && size == high_.whole.size();
      parts.push_back(whole(0, size, size == low_.whole.size(), at_high));
    }
    return draft_.choice(parts);
  }

 private:
  static uint8_t digit_at(const std::string& digits, size_t index) {
    return static_cast<uint8_t>(index < digits.size() ? digits[index] : '0');
  }

  ExpressionId digits(uint32_t min, uint32_t max) {
    return draft_.repeat(draft_.bytes('0', '9'), min, max);
  }

  // The ways to choose a digit from `lowest` to `highest`, which are the bounds' where those are
  // still touched; `rest(at_low, at_high)` is what follows.
  template <typename Rest>
  void choose(uint8_t lowest, uint8_t highest, bool at_low, bool at_high, const Rest& rest,
              std::vector<ExpressionId>& parts) {
    if (lowest > highest) return;
    const auto one = [&](uint8_t digit, bool low, bool high) {
      parts.push_back(draft_.sequence({draft_.bytes(digit, digit), rest(low, high)}));
    };
    if (lowest == highest && (at_low || at_high)) {
      one(lowest, at_low, at_high);
      return;
    }
    if (at_low) one(lowest++, true, false);
    const bool top = at_high;
    if (top) --highest;
    if (lowest <= highest) {
      parts.push_back(draft_.sequence({draft_.bytes(lowest, highest), rest(false, false)}));
    }
    if (top) one(static_cast<uint8_t>(highest + 1), false, true);
  }

  // Digits before the point from `index` on, of `size`.
  ExpressionId whole(size_t index, size_t size, bool at_low, bool at_high) {
    if (index == size) return after_whole(at_low, at_high);
    if (!at_low && !at_high && index > 0) {
      const auto left = static_cast<uint32_t>(size - index);
      return draft_.sequence({digits(left, left), after_whole(false, false)});
    }
    const uint8_t least = index == 0 && size > 1 ? '1' : '0';
    std::vector<ExpressionId> parts;
    choose(
        at_low ? digit_at(low_.whole, index) : least,
        at_high ? digit_at(high_.whole, index) : uint8_t{'9'}, at_low, at_high,
        [&](bool low, bool high) { return whole(index + 1, size, low, high); }, parts);
    return draft_.choice(parts);
  }

  bool zero_from(const std::string& fraction, size_t index) const {
    return index >= fraction.size();
  }

  bool may_end(size_t index, bool at_low, bool at_high) const {
    if (at_low && !(zero_from(low_.fraction, index) && low_.inclusive)) return false;
    return !at_high || !zero_from(high_.fraction, index) || high_.inclusive;
  }

  ExpressionId after_whole(bool at_low, bool at_high) {
    std::vector<ExpressionId> parts;
    if (may_end(0, at_low, at_high)) parts.push_back(draft_.empty());
    if (fraction_digits_ > 0) {
      parts.push_back(draft_.sequence({draft_.literal("."), fraction(0, at_low, at_high)}));
    }
    return draft_.choice(parts);
  }

  ExpressionId fraction(size_t index, bool at_low, bool at_high) {
    if (at_low && zero_from(low_.fraction, index) && low_.inclusive) at_low = false;
    if (at_high && zero_from(high_.fraction, index) && !high_.inclusive) return draft_.nothing();
    const auto left = static_cast<uint32_t>(fraction_digits_ - index);
    if (!at_low && !at_high) return digits(index == 0 ? 1 : 0, left);
    std::vector<ExpressionId> parts;
    if (index > 0 && may_end(index, at_low, at_high)) parts.push_back(draft_.empty());
    if (left > 0) {
      choose(
          at_low ? digit_at(low_.fraction, index) : uint8_t{'0'},
          at_high ? digit_at(high_.fraction, index) : uint8_t{'9'}, at_low, at_high,
          [&](bool low, bool high) { return fraction(index + 1, low, high); }, parts);
    }
    return draft_.choice(parts);
  }

  GrammarDraft& draft_;
  DecimalBound low_;
  DecimalBound high_;
  size_t whole_digits_;
  size_t fraction_digits_;
  bool has_high_;
};

int compare_magnitudes(const DecimalBound& left, const DecimalBound& right) {
  if (left.whole.size() != right.whole.size()) {
    return left.whole.size() < right.whole.size() ? -1 : 1;
  }
  const int whole = left.whole.compare(right.whole);
  const int order = whole != 0 ? whole : left.fraction.compare(right.fraction);
  return order < 0 ? -1 : order > 0 ? 1 : 0;
}

}  // namespace

ExpressionId json_string_character(GrammarDraft& draft) {
  return string_character(
      draft, draft.shared("(escape)", [&] { return make_escape(draft, "\"\\/bfnrt"); }));
}

ExpressionId python_string_character(GrammarDraft& draft) {
  return string_character(
      draft, draft.shared("(escape of Python)", [&] { return make_escape(draft, "\"\\bfnrt"); }));
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

std::optional<DecimalBound> to_decimal(double value, bool inclusive) {
  if (!std::isfinite(value) || std::abs(value) >= 1e15) return std::nullopt;
  DecimalBound bound{.negative = value < 0, .whole = "", .fraction = "", .inclusive = inclusive};
  // Digits and exponent of the shortest form, "1.25e-05".
  const std::string shortest = fmt::format("{}", std::abs(value));
  std::string digits;
  int exponent = 0;
  const size_t mark = shortest.find('e');
  for (const char letter : shortest.substr(0, mark)) {
    if (letter != '.') digits += letter;
  }
  const size_t point = std::min(shortest.find('.'), std::min(mark, shortest.size()));
  if (mark != std::string::npos) exponent = std::stoi(shortest.substr(mark + 1));
  const int whole_size = static_cast<int>(point) + exponent;
  if (whole_size <= 0) {
    digits.insert(0, static_cast<size_t>(1 - whole_size), '0');
  } else if (static_cast<size_t>(whole_size) > digits.size()) {
    digits.append(static_cast<size_t>(whole_size) - digits.size(), '0');
  }
  const auto whole_digits = static_cast<size_t>(std::max(whole_size, 1));
  bound.whole = digits.substr(0, whole_digits);
  bound.fraction = digits.substr(whole_digits);
  const size_t first = bound.whole.find_first_not_of('0');
  bound.whole = first == std::string::npos ? "0" : bound.whole.substr(first);
  bound.fraction.erase(bound.fraction.find_last_not_of('0') + 1);
  if (bound.is_zero()) bound.negative = false;
  if (bound.fraction.size() > kDigitsMax || bound.whole.size() > kDigitsMax) return std::nullopt;
  return bound;
}

int compare(const DecimalBound& left, const DecimalBound& right) {
  if (left.negative != right.negative) return left.negative ? -1 : 1;
  const int magnitudes = compare_magnitudes(left, right);
  return left.negative ? -magnitudes : magnitudes;
}

ExpressionId decimals_between(GrammarDraft& draft, const std::optional<DecimalBound>& low,
                              const std::optional<DecimalBound>& high, size_t whole_digits,
                              size_t fraction_digits) {
  if (low && high) {
    const int order = compare(*low, *high);
    if (order > 0 || (order == 0 && !(low->inclusive && high->inclusive))) return draft.nothing();
  }
  const DecimalBound zero;
  DecimalBound above_zero;
  above_zero.inclusive = false;
  std::vector<ExpressionId> parts;
  const auto turned = [](DecimalBound bound) {
    bound.negative = false;
    return bound;
  };
  if (!low || low->negative) {
    const std::optional<DecimalBound> most = low ? std::optional(turned(*low)) : std::nullopt;
    const DecimalBound least = high && high->negative ? turned(*high) : above_zero;
    parts.push_back(
        draft.sequence({draft.literal("-"),
                        Magnitudes(draft, least, most, whole_digits, fraction_digits).make()}));
  }
  if (!high || !high->negative) {
    const DecimalBound least = low && !low->negative ? *low : zero;
    parts.push_back(Magnitudes(draft, least, high, whole_digits, fraction_digits).make());
  }
  return draft.choice(parts);
}

}  // namespace lockstep
