// A grammar on its way: rules over bytes, as the readers of every source write them. Expressions
// are values in one arena, named by number, and may be used more than once.
//
// The first failure stays; what is made after it is of no use, so that readers can go on to a
// convenient place and ask once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/text/grammar/budget.h"
#include "engine/text/grammar/character_set.h"

namespace lockstep {

using ExpressionId = uint32_t;
using RuleId = uint32_t;

struct Expression {
  enum class Kind : uint8_t { kBytes, kLiteral, kSequence, kChoice, kRepeat, kRule };
  Kind kind = Kind::kSequence;
  uint32_t depth = 1;  // of expressions within one another
  uint32_t size = 1;   // about how many states it makes
  // kBytes: low and high. kLiteral: begin and size in the texts. kSequence, kChoice: begin and
  // count in the lists. kRepeat: the expression, min, max. kRule: the rule.
  uint32_t first = 0;
  uint32_t second = 0;
  uint32_t third = 0;
};

class GrammarDraft {
 public:
  static constexpr uint32_t kUnlimited = UINT32_MAX;
  static constexpr uint32_t kRepeatMax = 100'000;  // a greater count is refused

  explicit GrammarDraft(const GrammarLimits& limits);

  // Expressions. An empty sequence matches the empty text, an empty choice nothing.
  ExpressionId empty() { return kEmpty; }
  ExpressionId nothing() { return kNothing; }
  ExpressionId bytes(uint8_t low, uint8_t high);
  ExpressionId literal(std::string_view text);
  ExpressionId sequence(std::span<const ExpressionId> parts);
  ExpressionId sequence(std::initializer_list<ExpressionId> parts);
  ExpressionId choice(std::span<const ExpressionId> parts);
  ExpressionId choice(std::initializer_list<ExpressionId> parts);
  ExpressionId repeat(ExpressionId part, uint32_t min, uint32_t max);
  ExpressionId optional(ExpressionId part) { return repeat(part, 0, 1); }
  ExpressionId rule(RuleId rule);
  // One character of the set, in UTF-8.
  ExpressionId characters(const CharacterSet& set);

  // Rules. A rule that is added has no body until it is defined.
  RuleId add_rule(std::string name);
  void define(RuleId rule, ExpressionId body);
  void set_root(RuleId rule) { root_ = rule; }

  // The rule of this name, made by `make` at the first call.
  template <typename Make>
  ExpressionId shared(std::string_view name, const Make& make) {
    for (const auto& [known, id] : shared_) {
      if (known == name) return rule(id);
    }
    const RuleId added = add_rule(std::string(name));
    shared_.emplace_back(name, added);
    define(added, make());
    return rule(added);
  }
  // The same as a rule of its own, unless it is small: what is used more than once is then there
  // once, and so are its masks.
  ExpressionId as_rule(ExpressionId part, std::string name);
  // One character above ASCII but for the line and paragraph separators: what the token trie takes
  // for plain text. The automaton knows this rule.
  ExpressionId plain_multibyte();
  std::optional<RuleId> plain_multibyte_rule() const { return plain_multibyte_; }

  template <typename... Arguments>
  void fail(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    if (!error_) error_ = fmt::format(format, std::forward<Arguments>(arguments)...);
  }
  // Also when the budget is spent.
  bool failed() const { return error_.has_value() || budget_.spent(); }
  std::string error() const;

  GrammarBudget& budget() { return budget_; }
  const Expression& expression(ExpressionId id) const { return expressions_[id]; }
  std::string_view text(const Expression& literal) const {
    return std::string_view(texts_).substr(literal.first, literal.second);
  }
  std::span<const ExpressionId> list(const Expression& parts) const {
    return std::span(lists_).subspan(parts.first, parts.second);
  }
  size_t rule_count() const { return bodies_.size(); }
  std::optional<ExpressionId> body(RuleId rule) const { return bodies_[rule]; }
  const std::string& rule_name(RuleId rule) const { return names_[rule]; }
  RuleId root() const { return root_; }

 private:
  static constexpr ExpressionId kEmpty = 0;
  static constexpr ExpressionId kNothing = 1;

  ExpressionId add(const Expression& expression);
  ExpressionId add_list(Expression::Kind kind, std::span<const ExpressionId> parts);

  GrammarBudget budget_;
  std::vector<Expression> expressions_;
  std::vector<ExpressionId> lists_;
  std::string texts_;
  std::vector<std::optional<ExpressionId>> bodies_;
  std::vector<std::string> names_;
  std::vector<std::pair<std::string, RuleId>> shared_;
  std::optional<RuleId> plain_multibyte_;
  RuleId root_ = 0;
  std::optional<std::string> error_;
};

}  // namespace lockstep
