// Decimal numbers between bounds, as texts.
#pragma once

#include <optional>
#include <string>

#include "engine/text/grammar/draft.h"

namespace lockstep {

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

// The numbers from `low` to `high` (no limit where there is none), with at most so many digits
// before the point, and behind it: none for integers. No exponents.
ExpressionId decimals_between(GrammarDraft& draft, const std::optional<DecimalBound>& low,
                              const std::optional<DecimalBound>& high, size_t whole_digits,
                              size_t fraction_digits);

}  // namespace lockstep
