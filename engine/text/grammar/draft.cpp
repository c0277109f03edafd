#include "engine/text/grammar/draft.h"

#include <algorithm>

namespace lockstep {
namespace {

// The deepest recursion over expressions.
constexpr uint32_t kDepthMax = 1000;
// States that one rule can make. More would spend the budget; it is known before any is made.
constexpr uint64_t kSizeMax = 1U << 20U;

constexpr uint32_t kContinuationBits = 6;

// The byte sequences of the characters `low` to `high`, whose encodings have `more` bytes after
// the first of the bits considered here.
ExpressionId byte_ranges(GrammarDraft& draft, uint32_t low, uint32_t high, uint32_t more,
                         uint32_t lead) {
  const auto leading = [&](uint32_t bits) { return static_cast<uint8_t>(lead | bits); };
  if (more == 0) return draft.bytes(leading(low), leading(high));
  const uint32_t shift = kContinuationBits * more;
  const uint32_t below = (1U << shift) - 1;
  constexpr uint32_t kContinuation = 0x80;
  std::vector<ExpressionId> parts;
  const auto add = [&](uint32_t first, uint32_t last, uint32_t rest_low, uint32_t rest_high) {
    parts.push_back(
        draft.sequence({draft.bytes(leading(first), leading(last)),
                        byte_ranges(draft, rest_low, rest_high, more - 1, kContinuation)}));
  };
  uint32_t first = low >> shift;
  uint32_t last = high >> shift;
  if (first == last) {
    add(first, first, low & below, high & below);
    return parts[0];
  }
  if ((low & below) != 0) add(first++, low >> shift, low & below, below);
  const bool cut = (high & below) != below;
  if (cut) --last;
  if (first <= last) add(first, last, 0, below);
  if (cut) add(last + 1, high >> shift, 0, high & below);
  return draft.choice(parts);
}

struct Length {
  uint32_t low;
  uint32_t high;
  uint32_t more;  // bytes after the first
  uint32_t lead;
};
// Surrogates are no characters, though a set's range may go over them.
constexpr Length kLengths[] = {{0, 0x7F, 0, 0},
                               {0x80, 0x7FF, 1, 0xC0},
                               {0x800, 0xD7FF, 2, 0xE0},
                               {0xE000, 0xFFFF, 2, 0xE0},
                               {0x10000, 0x10FFFF, 3, 0xF0}};

const CharacterSet& plain_above_ascii() {
  static const CharacterSet set = {{0x80, 0x2027}, {0x202A, 0x10FFFF}};
  return set;
}

ExpressionId utf8_choice(GrammarDraft& draft, const CharacterSet& set,
                         std::vector<ExpressionId> parts) {
  for (const CharacterRange& range : set.ranges()) {
    for (const Length& length : kLengths) {
      const uint32_t low = std::max(range.low, length.low);
      const uint32_t high = std::min(range.high, length.high);
      if (low <= high) parts.push_back(byte_ranges(draft, low, high, length.more, length.lead));
      if (!draft.budget().take(0)) return draft.nothing();
    }
  }
  return parts.size() == 1 ? parts[0] : draft.choice(parts);
}

}  // namespace

GrammarDraft::GrammarDraft(const GrammarLimits& limits) : budget_(limits) {
  add_list(Expression::Kind::kSequence, {});
  add_list(Expression::Kind::kChoice, {});
}

ExpressionId GrammarDraft::add(const Expression& expression) {
  if (expression.size >= kSizeMax) {
    fail("it makes more than {} states; use lower counts of repetitions", kSizeMax);
    return kNothing;
  }
  if (expression.depth > kDepthMax) {
    fail("its parts are nested too deeply");
    return kNothing;
  }
  if (!budget_.take(sizeof(Expression))) return kNothing;
  expressions_.push_back(expression);
  return static_cast<ExpressionId>(expressions_.size() - 1);
}

ExpressionId GrammarDraft::add_list(Expression::Kind kind, std::span<const ExpressionId> parts) {
  if (!budget_.take(parts.size() * sizeof(ExpressionId))) return kNothing;
  uint32_t depth = 0;
  uint64_t size = 2;
  for (const ExpressionId part : parts) {
    depth = std::max(depth, expressions_[part].depth);
    size += expressions_[part].size + 1;
  }
  const auto begin = static_cast<uint32_t>(lists_.size());
  lists_.insert(lists_.end(), parts.begin(), parts.end());
  return add({kind, depth + 1, static_cast<uint32_t>(std::min(size, kSizeMax)), begin,
              static_cast<uint32_t>(parts.size())});
}

ExpressionId GrammarDraft::bytes(uint8_t low, uint8_t high) {
  return add({Expression::Kind::kBytes, 1, 1, low, high});
}

ExpressionId GrammarDraft::literal(std::string_view text) {
  if (text.empty()) return kEmpty;
  if (!budget_.take(text.size())) return kNothing;
  const auto begin = static_cast<uint32_t>(texts_.size());
  texts_ += text;
  const auto size = static_cast<uint32_t>(text.size());
  return add({Expression::Kind::kLiteral, 1, size, begin, size});
}

ExpressionId GrammarDraft::sequence(std::span<const ExpressionId> parts) {
  if (parts.size() == 1) return parts[0];
  return parts.empty() ? kEmpty : add_list(Expression::Kind::kSequence, parts);
}

ExpressionId GrammarDraft::sequence(std::initializer_list<ExpressionId> parts) {
  return sequence(std::span(parts.begin(), parts.size()));
}

ExpressionId GrammarDraft::choice(std::span<const ExpressionId> parts) {
  if (parts.size() == 1) return parts[0];
  return parts.empty() ? kNothing : add_list(Expression::Kind::kChoice, parts);
}

ExpressionId GrammarDraft::choice(std::initializer_list<ExpressionId> parts) {
  return choice(std::span(parts.begin(), parts.size()));
}

ExpressionId GrammarDraft::repeat(ExpressionId part, uint32_t min, uint32_t max) {
  if (min == 1 && max == 1) return part;
  if (max == 0) return kEmpty;
  const uint32_t count = max == kUnlimited ? min : max;
  if (count > kRepeatMax || min > max) {
    fail("a repetition from {} to {} is refused; counts must ascend up to {}", min, max,
         kRepeatMax);
    return kNothing;
  }
  // An expression that is repeated this often is worth being there once, with its masks; but not
  // one that is hardly more than a character.
  constexpr uint32_t kOften = 4;
  constexpr uint32_t kPartSizeMin = 7;
  if (count >= kOften && expressions_[part].kind == Expression::Kind::kSequence &&
      expressions_[part].size >= kPartSizeMin) {
    const RuleId repeated = add_rule("(repeated)");
    define(repeated, part);
    part = rule(repeated);
  }
  const uint64_t size = uint64_t{expressions_[part].size} * (count + uint64_t{1}) + 2;
  return add({Expression::Kind::kRepeat, expressions_[part].depth + 1,
              static_cast<uint32_t>(std::min(size, kSizeMax)), part, min, max});
}

ExpressionId GrammarDraft::rule(RuleId rule) {
  return add({Expression::Kind::kRule, 1, 1, rule});
}

ExpressionId GrammarDraft::characters(const CharacterSet& set) {
  if (failed()) return kNothing;
  CharacterSet rest = set;
  rest.normalize();
  std::vector<ExpressionId> parts;
  if (plain_above_ascii().without(rest).empty()) {
    parts.push_back(plain_multibyte());
    rest = rest.without(plain_above_ascii());
  }
  return utf8_choice(*this, rest, std::move(parts));
}

ExpressionId GrammarDraft::as_rule(ExpressionId part, std::string name) {
  constexpr uint32_t kSmall = 12;
  if (expressions_[part].size <= kSmall) return part;
  const RuleId added = add_rule(std::move(name));
  define(added, part);
  return rule(added);
}

ExpressionId GrammarDraft::plain_multibyte() {
  if (!plain_multibyte_) {
    plain_multibyte_ = add_rule("(plain character above ASCII)");
    define(*plain_multibyte_, utf8_choice(*this, plain_above_ascii(), {}));
  }
  return rule(*plain_multibyte_);
}

RuleId GrammarDraft::add_rule(std::string name) {
  budget_.take(sizeof(std::string) + sizeof(std::optional<ExpressionId>) + name.size());
  bodies_.emplace_back();
  names_.push_back(std::move(name));
  return static_cast<RuleId>(bodies_.size() - 1);
}

void GrammarDraft::define(RuleId rule, ExpressionId body) {
  bodies_[rule] = body;
}

std::string GrammarDraft::error() const {
  if (error_) return *error_;
  return fmt::format(
      "it is too complex: compiling takes more than {} ms or {} MiB; simplify it (counted "
      "repetitions such as {{0,1000}}, and long lists of alternatives, cost most)",
      budget_.limits().time.count(), budget_.limits().bytes >> 20U);
}

}  // namespace lockstep
