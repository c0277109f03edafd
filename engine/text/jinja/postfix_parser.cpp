// Parses what follows an expression: attributes, items, calls, filters and tests.
#include "engine/text/jinja/expression_parser.h"

namespace lockstep::jinja {

ExpressionPointer ExpressionParser::parse_postfix(ExpressionPointer expression) {
  while (true) {
    if (stream_.at_operator(".")) {
      expression = parse_attribute(std::move(expression));
    } else if (stream_.at_operator("[")) {
      expression = parse_subscript(std::move(expression));
    } else if (stream_.at_operator("(")) {
      expression = parse_call(std::move(expression));
    } else {
      return expression;
    }
  }
}

ExpressionPointer ExpressionParser::parse_filters_and_tests(ExpressionPointer expression) {
  while (true) {
    if (stream_.at_operator("|")) {
      expression = parse_filters(std::move(expression), false);
    } else if (stream_.at_name("is")) {
      expression = parse_test(std::move(expression));
    } else if (stream_.at_operator("(")) {
      expression = parse_call(std::move(expression));
    } else {
      return expression;
    }
  }
}

ExpressionPointer ExpressionParser::parse_attribute(ExpressionPointer object) {
  const uint32_t line = stream_.next().line;
  const Token& token = stream_.next();
  if (token.kind == TokenKind::kName) {
    auto attribute = make(ExpressionKind::kAttribute, line);
    attribute->name = token.text;
    attribute->operands.push_back(std::move(object));
    return finish(std::move(attribute));
  }
  if (token.kind != TokenKind::kInteger) {
    stream_.fail_at(token.line, "expected a name or a number after '.'");
  }
  auto item = make(ExpressionKind::kItem, line);
  auto key = make(ExpressionKind::kConstant, token.line);
  key->constant = Value(token.integer);
  item->operands.push_back(std::move(object));
  item->operands.push_back(std::move(key));
  return finish(std::move(item));
}

ExpressionPointer ExpressionParser::parse_subscript(ExpressionPointer object) {
  auto item = make(ExpressionKind::kItem, stream_.next().line);
  item->operands.push_back(std::move(object));
  std::vector<ExpressionPointer> keys;
  while (!stream_.at_operator("]")) {
    if (!keys.empty()) stream_.expect_operator(",");
    ExpressionPointer start = stream_.at_operator(":") ? nullptr : parse();
    if (!stream_.at_operator(":")) {
      keys.push_back(std::move(start));
      continue;
    }
    if (!keys.empty()) stream_.fail_at(item->line, "a slice cannot stand beside another key");
    item->kind = ExpressionKind::kSlice;
    item->operands.push_back(std::move(start));
    for (int part = 0; part < 2; ++part) {
      const bool given = stream_.skip_operator(":") && !stream_.at_operator(":") &&
                         !stream_.at_operator("]") && !stream_.at_operator(",");
      item->operands.push_back(given ? parse() : nullptr);
    }
    break;
  }
  stream_.expect_operator("]");
  if (item->kind == ExpressionKind::kSlice) return finish(std::move(item));
  if (keys.size() == 1) {
    item->operands.push_back(std::move(keys[0]));
  } else {
    auto tuple = make(ExpressionKind::kTuple, item->line);
    tuple->operands = std::move(keys);
    item->operands.push_back(finish(std::move(tuple)));
  }
  return finish(std::move(item));
}

CallArguments ExpressionParser::parse_arguments() {
  const uint32_t line = stream_.current().line;
  stream_.expect_operator("(");
  CallArguments arguments;
  bool needs_comma = false;
  while (!stream_.at_operator(")")) {
    if (needs_comma) {
      stream_.expect_operator(",");
      if (stream_.at_operator(")")) break;
    }
    parse_argument(arguments, line);
    needs_comma = true;
  }
  stream_.next();
  return arguments;
}

void ExpressionParser::parse_argument(CallArguments& arguments, uint32_t line) {
  bool in_order = true;
  if (stream_.skip_operator("*")) {
    in_order = arguments.spread == nullptr && arguments.spread_named == nullptr;
    arguments.spread = parse();
  } else if (stream_.skip_operator("**")) {
    in_order = arguments.spread_named == nullptr;
    arguments.spread_named = parse();
  } else if (stream_.at(TokenKind::kName) && stream_.look().is_operator("=")) {
    in_order = arguments.spread_named == nullptr;
    std::string name = stream_.next().text;
    stream_.next();
    for (const auto& [given, value] : arguments.named) {
      if (given == name) stream_.fail_at(line, fmt::format("argument '{}' is repeated", name));
    }
    arguments.named.emplace_back(std::move(name), parse());
  } else {
    in_order =
        arguments.spread == nullptr && arguments.spread_named == nullptr && arguments.named.empty();
    arguments.positional.push_back(parse());
  }
  if (!in_order) stream_.fail_at(line, "invalid order of the arguments of a call");
}

ExpressionPointer ExpressionParser::parse_call(ExpressionPointer callee) {
  auto call = make(ExpressionKind::kCall, stream_.current().line);
  call->operands.push_back(std::move(callee));
  call->arguments = parse_arguments();
  return finish(std::move(call));
}

std::string ExpressionParser::parse_dotted_name() {
  std::string name = stream_.expect(TokenKind::kName, "name").text;
  while (stream_.skip_operator(".")) {
    name += "." + stream_.expect(TokenKind::kName, "name").text;
  }
  return name;
}

ExpressionPointer ExpressionParser::parse_filters(ExpressionPointer value, bool starts_inline) {
  while (starts_inline || stream_.skip_operator("|")) {
    starts_inline = false;
    auto filter = make(ExpressionKind::kFilter, stream_.current().line);
    filter->name = parse_dotted_name();
    filter->native = find_filter(filter->name);
    if (filter->native == nullptr) {
      note_unknown(filter->line, fmt::format("there is no filter named '{}'", filter->name));
    }
    filter->operands.push_back(std::move(value));
    if (stream_.at_operator("(")) filter->arguments = parse_arguments();
    value = finish(std::move(filter));
  }
  return value;
}

ExpressionPointer ExpressionParser::parse_test(ExpressionPointer value) {
  auto test = make(ExpressionKind::kTest, stream_.next().line);
  const bool negated = stream_.skip_name("not");
  test->name = parse_dotted_name();
  test->native = find_test(test->name);
  if (test->native == nullptr) {
    note_unknown(test->line, fmt::format("there is no test named '{}'", test->name));
  }
  test->operands.push_back(std::move(value));
  const Token& token = stream_.current();
  const bool operand = token.kind == TokenKind::kName || token.kind == TokenKind::kString ||
                       token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat ||
                       token.is_operator("[") || token.is_operator("{");
  if (stream_.at_operator("(")) {
    test->arguments = parse_arguments();
  } else if (operand && !token.is_name("else") && !token.is_name("or") && !token.is_name("and")) {
    if (token.is_name("is")) stream_.fail_at(token.line, "tests cannot be chained with is");
    test->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  test = finish(std::move(test));
  if (!negated) return test;
  auto negation = make(ExpressionKind::kNot, test->line);
  negation->operands.push_back(std::move(test));
  return finish(std::move(negation));
}

}  // namespace lockstep::jinja
