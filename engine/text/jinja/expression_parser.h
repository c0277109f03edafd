// Parses Jinja2's expressions.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/jinja/syntax.h"
#include "engine/text/jinja/token_stream.h"

namespace lockstep::jinja {

class ExpressionParser {
 public:
  ExpressionParser(TokenStream& stream, SymbolTable& symbols)
      : stream_(stream), symbols_(symbols) {}

  ExpressionPointer parse(bool with_condition = true);
  // One expression, or a tuple of several with commas between them. `end_name`: a name that ends
  // it. An empty tuple only within parentheses.
  ExpressionPointer parse_tuple(bool with_condition = true, std::string_view end_name = {},
                                bool in_parentheses = false);
  // Parses a target of an assignment; attributes only where a namespace may stand.
  Target parse_target(bool with_namespace, std::string_view end_name = {});
  // The filters that follow; `value` may be null, as in a filter block.
  ExpressionPointer parse_filters(ExpressionPointer value, bool starts_inline);

  // Filters and tests that do not exist, where Jinja2 finds that at once: outside of conditions.
  struct Unknown {
    uint32_t line;
    std::string message;
  };
  std::vector<Unknown>& unknown() { return unknown_; }
  // Within a condition, a filter that does not exist fails only when it is used.
  bool set_conditional(bool conditional) { return std::exchange(conditional_, conditional); }
  // Every name read so far.
  const std::vector<Symbol>& names_read() const { return names_read_; }

 private:
  ExpressionPointer make(ExpressionKind kind, uint32_t line);
  ExpressionPointer finish(ExpressionPointer expression) const;
  ExpressionPointer parse_condition();
  ExpressionPointer parse_or();
  ExpressionPointer parse_and();
  ExpressionPointer parse_not();
  ExpressionPointer parse_compare();
  ExpressionPointer parse_sum();
  ExpressionPointer parse_concatenation();
  ExpressionPointer parse_product();
  ExpressionPointer parse_power();
  ExpressionPointer parse_unary(bool with_filters);
  ExpressionPointer parse_primary();
  ExpressionPointer parse_name();
  ExpressionPointer parse_list();
  ExpressionPointer parse_dict();
  ExpressionPointer parse_postfix(ExpressionPointer expression);
  ExpressionPointer parse_filters_and_tests(ExpressionPointer expression);
  ExpressionPointer parse_attribute(ExpressionPointer object);
  ExpressionPointer parse_subscript(ExpressionPointer object);
  ExpressionPointer parse_call(ExpressionPointer callee);
  ExpressionPointer parse_test(ExpressionPointer value);
  CallArguments parse_arguments();
  void parse_argument(CallArguments& arguments, uint32_t line);
  std::string parse_dotted_name();
  bool at_tuple_end(std::string_view end_name) const;
  void note_unknown(uint32_t line, std::string message);

  TokenStream& stream_;
  SymbolTable& symbols_;
  std::vector<Unknown> unknown_;
  bool conditional_ = false;
  std::vector<Symbol> names_read_;
};

}  // namespace lockstep::jinja
