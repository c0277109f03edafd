// A parsed template. Names are numbered, so that looking one up compares integers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/value.h"

namespace lockstep::jinja {

using Symbol = uint32_t;

class SymbolTable {
 public:
  Symbol intern(std::string_view name) {
    const auto [entry, added] =
        numbers_.try_emplace(std::string(name), static_cast<Symbol>(names_.size()));
    if (added) names_.emplace_back(name);
    return entry->second;
  }
  const std::string& name(Symbol symbol) const { return names_[symbol]; }
  size_t size() const { return names_.size(); }

 private:
  std::unordered_map<std::string, Symbol> numbers_;
  std::vector<std::string> names_;
};

struct Expression;
using ExpressionPointer = std::unique_ptr<Expression>;

struct CallArguments {
  std::vector<ExpressionPointer> positional;
  std::vector<std::pair<std::string, ExpressionPointer>> named;
  ExpressionPointer spread;        // *expression
  ExpressionPointer spread_named;  // **expression
};

enum class ExpressionKind {
  kConstant,
  kName,
  kList,
  kTuple,
  kDict,       // operands: key, value, key, value ...
  kAttribute,  // object; name
  kItem,       // object, key
  kSlice,      // object, start, stop, step; the last three may be null
  kCall,       // callee; arguments
  kFilter,     // value (null in a filter block), arguments; name
  kTest,       // value, arguments; name
  kNegative,
  kPositive,
  kNot,
  kAnd,          // two or more
  kOr,           // two or more
  kArithmetic,   // the first, and one more per operator, from left to right
  kConcatenate,  // two or more
  kCompare,      // the first, and one more per operator
  kConditional,  // condition, then, otherwise (may be null)
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  uint32_t line = 0;
  uint32_t depth = 1;  // of the tree below
  Symbol symbol = 0;
  Value constant;
  std::string name;
  const Native* native = nullptr;  // of a filter or test; null when there is none of that name
  std::vector<ExpressionPointer> operands;
  std::vector<Operator> operators;
  CallArguments arguments;
};

// The left side of an assignment.
struct Target {
  enum class Kind { kName, kTuple, kAttribute };
  Kind kind = Kind::kName;
  Symbol symbol = 0;
  std::string attribute;      // of a namespace
  std::vector<Target> items;  // of a tuple
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

struct Branch {
  ExpressionPointer condition;
  Block body;
};

struct MacroParameter {
  Symbol symbol = 0;
  std::string name;
  ExpressionPointer otherwise;  // null: undefined when not given
};

// A {% macro %} or the body of {% call %}.
struct MacroDefinition {
  std::string name;  // empty for a call's body
  std::vector<MacroParameter> parameters;
  Block body;
  // Whether the body names it, so that the caller may pass it.
  bool uses_caller = false;
  bool uses_kwargs = false;
  bool uses_varargs = false;
};

enum class StatementKind {
  kText,         // text
  kPrint,        // expressions
  kFor,          // target, expressions: what is walked, the filter (may be null); body, otherwise
  kIf,           // branches, otherwise
  kSet,          // target, expressions[0]
  kSetBlock,     // target, body, expressions: the filter, if there is one
  kMacro,        // macro, symbol
  kCall,         // macro, expressions[0]: the call
  kFilterBlock,  // body, expressions[0]: the filter
  kWith,         // targets with expressions, body
  kScope,        // body: {% generation %} and {% block %}
  kBreak,
  kContinue,
  kRefused,  // text: what needs other files
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  uint32_t line = 0;
  std::string text;
  Symbol symbol = 0;
  bool recursive = false;
  bool isolated = false;  // kScope: the body does not see the scopes around it
  std::vector<Target> targets;
  std::vector<ExpressionPointer> expressions;
  std::vector<Branch> branches;
  Block body;
  Block otherwise;
  std::unique_ptr<MacroDefinition> macro;
};

// The names that the interpreter itself gives meaning to.
struct KnownSymbols {
  Symbol loop = 0;
  Symbol caller = 0;
  Symbol kwargs = 0;
  Symbol varargs = 0;
};

struct Template {
  SymbolTable symbols;
  KnownSymbols known;
  Block body;
};

// Parses statements and expressions. Throws a Failure with the line. The source is valid UTF-8.
Template parse(std::string_view source, const TemplateLimits& limits);

}  // namespace lockstep::jinja
