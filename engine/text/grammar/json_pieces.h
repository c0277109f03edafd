// JSON as it is generated: compact, with at most one space after a colon and after a comma, so that
// no model can go on with white space for ever.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/text/grammar/draft.h"

namespace lockstep {

// One character of a string, as it is or escaped. Never half a surrogate pair.
ExpressionId json_string_character(GrammarDraft& draft);
// The same with escapes that Python reads alike.
ExpressionId python_string_character(GrammarDraft& draft);
ExpressionId json_string(GrammarDraft& draft);
// With so many characters.
ExpressionId json_string(GrammarDraft& draft, uint32_t min, uint32_t max);
// Any number but those so long or large that readers lose them.
ExpressionId json_number(GrammarDraft& draft);
ExpressionId json_integer(GrammarDraft& draft);
ExpressionId json_any_value(GrammarDraft& draft);
ExpressionId json_any_object(GrammarDraft& draft);
ExpressionId json_any_array(GrammarDraft& draft);

ExpressionId json_comma(GrammarDraft& draft);
ExpressionId json_colon(GrammarDraft& draft);
// From `min` to `max` parts with commas between them.
ExpressionId json_list(GrammarDraft& draft, ExpressionId part, uint32_t min, uint32_t max);

// The characters of the set as a string holds them: what must be escaped is, in one way.
ExpressionId json_characters(GrammarDraft& draft, const CharacterSet& set);

// A bound of a decimal number, as text.
struct DecimalBound {
  bool negative = false;
  std::string whole = "0";  // without zeros before it
  std::string fraction;     // without zeros behind it
  bool inclusive = true;

  bool is_zero() const { return whole == "0" && fraction.empty(); }
};

// The shortest decimal number that reads back as this one; nothing if that has more than 15 digits
// before or behind its point.
std::optional<DecimalBound> to_decimal(double value, bool inclusive);

// -1, 0 or 1 as `left` is below, at or above `right`, whether inclusive or not.
int compare(const DecimalBound& left, const DecimalBound& right);

// The texts of the numbers from `low` to `high` (no limit where there is none), with at most so
// many digits before the point, and behind it: none for integers. No exponents.
ExpressionId decimals_between(GrammarDraft& draft, const std::optional<DecimalBound>& low,
                              const std::optional<DecimalBound>& high, size_t whole_digits,
                              size_t fraction_digits);

}  // namespace lockstep
