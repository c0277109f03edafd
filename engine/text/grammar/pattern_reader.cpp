#include "engine/text/grammar/pattern_reader.h"

#include <algorithm>

#include "engine/base/ascii.h"
#include "engine/text/utf8.h"

namespace lockstep {
namespace {

// A set's vector grows by doubling, and so does the sorted copy that normalize() makes of it.
constexpr size_t kRangeBytes = 4 * sizeof(CharacterRange);

}  // namespace

bool PatternReader::take(std::string_view expected) {
  if (!rest().starts_with(expected)) return false;
  position_ += expected.size();
  return true;
}

uint32_t PatternReader::take_character() {
  if (at_end()) {
    fail("it ends too early");
    return 0;
  }
  const DecodedCharacter character = decode_utf8(rest());
  position_ += character.size_bytes;
  return character.code_point;
}

uint32_t PatternReader::take_hex(size_t digits) {
  uint32_t value = 0;
  for (size_t index = 0; index < digits; ++index, ++position_) {
    const auto digit = hex_digit(peek());
    if (!digit) {
      fail("{} hexadecimal digits are expected", digits);
      return 0;
    }
    value = value * 16 + *digit;
  }
  return value;
}

void PatternReader::collect(const CharacterSet& more, CharacterSet& set) {
  if (draft_.budget().take(more.ranges().size() * kRangeBytes)) set.add(more);
}

void PatternReader::collect(uint32_t low, uint32_t high, CharacterSet& set) {
  if (draft_.budget().take(kRangeBytes)) set.add(low, high);
}

std::optional<uint64_t> PatternReader::take_number() {
  constexpr uint64_t kMost = UINT32_MAX;
  if (peek() < '0' || peek() > '9') return std::nullopt;
  uint64_t value = 0;
  for (; peek() >= '0' && peek() <= '9'; ++position_) {
    value = std::min(kMost, value * 10 + static_cast<uint64_t>(peek() - '0'));
  }
  return value;
}

bool PatternReader::at_quantifier() const {
  const char next = peek();
  return next == '*' || next == '+' || next == '?' || next == '{';
}

std::optional<PatternReader::Counts> PatternReader::take_quantifier(std::string_view advice) {
  if (take("*")) return Counts{0, GrammarDraft::kUnlimited};
  if (take("+")) return Counts{1, GrammarDraft::kUnlimited};
  if (take("?")) return Counts{0, 1};
  if (peek() != '{') return std::nullopt;
  const auto counts = take_counts();
  if (!counts) fail("\"{{\" begins a count such as {{1,3}}{}", advice);
  return counts;
}

std::optional<PatternReader::Counts> PatternReader::take_counts() {
  const size_t before = position_;
  const auto not_counts = [&] {
    position_ = before;
    return std::nullopt;
  };
  if (!take("{")) return not_counts();
  const auto min = take_number();
  const bool open = take(",");
  const auto max = open ? take_number() : min;
  if ((!min && !max) || !take("}")) return not_counts();
  const uint64_t least = min.value_or(0);
  const uint64_t most = max.value_or(0);
  if (least > GrammarDraft::kRepeatMax || most > GrammarDraft::kRepeatMax ||
      (max && least > most)) {
    fail("counts of repetitions must ascend and be at most {}", GrammarDraft::kRepeatMax);
    return Counts{};
  }
  return Counts{static_cast<uint32_t>(least),
                max ? static_cast<uint32_t>(most) : GrammarDraft::kUnlimited};
}

}  // namespace lockstep
