#include "engine/text/grammar/decimal_range.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace lockstep {
namespace {

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
