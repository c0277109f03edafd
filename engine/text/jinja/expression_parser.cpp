#include "engine/text/jinja/expression_parser.h"

#include <algorithm>
#include <array>

namespace lockstep::jinja {

namespace {

struct OperatorName {
  std::string_view text;
  Operator operation;
};

constexpr std::array<OperatorName, 6> kComparisons = {{{"==", Operator::kEqual},
                                                       {"!=", Operator::kNotEqual},
                                                       {"<", Operator::kLess},
                                                       {"<=", Operator::kLessEqual},
                                                       {">", Operator::kGreater},
                                                       {">=", Operator::kGreaterEqual}}};
constexpr std::array<OperatorName, 2> kSums = {{{"+", Operator::kAdd}, {"-", Operator::kSubtract}}};
constexpr std::array<OperatorName, 4> kProducts = {{{"*", Operator::kMultiply},
                                                    {"/", Operator::kDivide},
                                                    {"//", Operator::kFloorDivide},
                                                    {"%", Operator::kModulo}}};

const OperatorName* find_operator(const Token& token, std::span<const OperatorName> choices) {
  if (token.kind != TokenKind::kOperator) return nullptr;
  const auto found = std::ranges::find(choices, token.text, &OperatorName::text);
  return found == choices.end() ? nullptr : &*found;
}

}  // namespace

ExpressionPointer ExpressionParser::make(ExpressionKind kind, uint32_t line) {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->line = line;
  return expression;
}

// Bounds the tree, and so every walk over it.
ExpressionPointer ExpressionParser::finish(ExpressionPointer expression) const {
  uint32_t deepest = 0;
  const auto look_at = [&deepest](const ExpressionPointer& part) {
    if (part != nullptr) deepest = std::max(deepest, part->depth);
  };
  std::ranges::for_each(expression->operands, look_at);
  std::ranges::for_each(expression->arguments.positional, look_at);
  for (const auto& [name, value] : expression->arguments.named) look_at(value);
  look_at(expression->arguments.spread);
  look_at(expression->arguments.spread_named);
  expression->depth = deepest + 1;
  if (expression->depth > stream_.depth_limit()) stream_.fail_depth();
  return expression;
}

ExpressionPointer ExpressionParser::parse(bool with_condition) {
  return with_condition ? parse_condition() : parse_or();
}

ExpressionPointer ExpressionParser::parse_condition() {
  const TokenStream::Level level(stream_);
  const uint32_t line = stream_.current().line;
  const size_t unknown_before = unknown_.size();
  ExpressionPointer value = parse_or();
  while (stream_.skip_name("if")) {
    auto choice = make(ExpressionKind::kConditional, line);
    choice->operands.push_back(parse_or());
    choice->operands.push_back(std::move(value));
    choice->operands.push_back(stream_.skip_name("else") ? parse_condition() : nullptr);
    value = finish(std::move(choice));
    unknown_.resize(std::min(unknown_.size(), unknown_before));
  }
  return value;
}

ExpressionPointer ExpressionParser::parse_or() {
  const uint32_t line = stream_.current().line;
  ExpressionPointer first = parse_and();
  if (!stream_.at_name("or")) return first;
  auto any = make(ExpressionKind::kOr, line);
  any->operands.push_back(std::move(first));
  while (stream_.skip_name("or")) any->operands.push_back(parse_and());
  return finish(std::move(any));
}

ExpressionPointer ExpressionParser::parse_and() {
  const uint32_t line = stream_.current().line;
  ExpressionPointer first = parse_not();
  if (!stream_.at_name("and")) return first;
  auto all = make(ExpressionKind::kAnd, line);
  all->operands.push_back(std::move(first));
  while (stream_.skip_name("and")) all->operands.push_back(parse_not());
  return finish(std::move(all));
}

ExpressionPointer ExpressionParser::parse_not() {
  if (!stream_.at_name("not")) return parse_compare();
  const TokenStream::Level level(stream_);
  auto expression = make(ExpressionKind::kNot, stream_.next().line);
  expression->operands.push_back(parse_not());
  return finish(std::move(expression));
}

ExpressionPointer ExpressionParser::parse_compare() {
  auto comparison = make(ExpressionKind::kCompare, stream_.current().line);
  comparison->operands.push_back(parse_sum());
  while (true) {
    if (const auto* found = find_operator(stream_.current(), kComparisons)) {
      stream_.next();
      comparison->operators.push_back(found->operation);
    } else if (stream_.skip_name("in")) {
      comparison->operators.push_back(Operator::kIn);
    } else if (stream_.at_name("not") && stream_.look().is_name("in")) {
      stream_.next();
      stream_.next();
      comparison->operators.push_back(Operator::kNotIn);
    } else {
      break;
    }
    comparison->operands.push_back(parse_sum());
  }
  if (comparison->operators.empty()) return std::move(comparison->operands[0]);
  return finish(std::move(comparison));
}

ExpressionPointer ExpressionParser::parse_sum() {
  auto sum = make(ExpressionKind::kArithmetic, stream_.current().line);
  sum->operands.push_back(parse_concatenation());
  while (const auto* found = find_operator(stream_.current(), kSums)) {
    stream_.next();
    sum->operators.push_back(found->operation);
    sum->operands.push_back(parse_concatenation());
  }
  if (sum->operators.empty()) return std::move(sum->operands[0]);
  return finish(std::move(sum));
}

ExpressionPointer ExpressionParser::parse_concatenation() {
  auto joined = make(ExpressionKind::kConcatenate, stream_.current().line);
  joined->operands.push_back(parse_product());
  while (stream_.skip_operator("~")) joined->operands.push_back(parse_product());
  if (joined->operands.size() == 1) return std::move(joined->operands[0]);
  return finish(std::move(joined));
}

ExpressionPointer ExpressionParser::parse_product() {
  auto product = make(ExpressionKind::kArithmetic, stream_.current().line);
  product->operands.push_back(parse_power());
  while (const auto* found = find_operator(stream_.current(), kProducts)) {
    stream_.next();
    product->operators.push_back(found->operation);
    product->operands.push_back(parse_power());
  }
  if (product->operators.empty()) return std::move(product->operands[0]);
  return finish(std::move(product));
}

ExpressionPointer ExpressionParser::parse_power() {
  // From left to right, other than in Python.
  auto power = make(ExpressionKind::kArithmetic, stream_.current().line);
  power->operands.push_back(parse_unary(true));
  while (stream_.skip_operator("**")) {
    power->operators.push_back(Operator::kPower);
    power->operands.push_back(parse_unary(true));
  }
  if (power->operators.empty()) return std::move(power->operands[0]);
  return finish(std::move(power));
}

ExpressionPointer ExpressionParser::parse_unary(bool with_filters) {
  ExpressionPointer expression;
  if (stream_.at_operator("-") || stream_.at_operator("+")) {
    const TokenStream::Level level(stream_);
    const Token& sign = stream_.next();
    expression =
        make(sign.text == "-" ? ExpressionKind::kNegative : ExpressionKind::kPositive, sign.line);
    expression->operands.push_back(parse_unary(false));
    expression = finish(std::move(expression));
  } else {
    expression = parse_primary();
  }
  expression = parse_postfix(std::move(expression));
  return with_filters ? parse_filters_and_tests(std::move(expression)) : std::move(expression);
}

ExpressionPointer ExpressionParser::parse_primary() {
  const Token& token = stream_.current();
  switch (token.kind) {
    case TokenKind::kName:
      return parse_name();
    case TokenKind::kString: {
      auto text = make(ExpressionKind::kConstant, token.line);
      std::string joined;
      while (stream_.at(TokenKind::kString)) joined += stream_.next().text;
      text->constant = Value::constant(std::move(joined));
      return text;
    }
    case TokenKind::kInteger:
    case TokenKind::kFloat: {
      auto number = make(ExpressionKind::kConstant, token.line);
      number->constant =
          token.kind == TokenKind::kInteger ? Value(token.integer) : Value(token.number);
      stream_.next();
      return number;
    }
    default:
      break;
  }
  if (stream_.skip_operator("(")) {
    ExpressionPointer inner = parse_tuple(true, {}, true);
    stream_.expect_operator(")");
    return inner;
  }
  if (stream_.at_operator("[")) return parse_list();
  if (stream_.at_operator("{")) return parse_dict();
  stream_.fail_at(token.line, fmt::format("unexpected {}", stream_.describe_current()));
}

ExpressionPointer ExpressionParser::parse_name() {
  const Token& token = stream_.next();
  const std::string& name = token.text;
  auto expression = make(ExpressionKind::kConstant, token.line);
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    expression->constant = Value(name == "true" || name == "True");
  } else if (name != "none" && name != "None") {
    expression->kind = ExpressionKind::kName;
    expression->symbol = symbols_.intern(name);
    names_read_.push_back(expression->symbol);
  }
  return expression;
}

bool ExpressionParser::at_tuple_end(std::string_view end_name) const {
  return stream_.at(TokenKind::kVariableEnd) || stream_.at(TokenKind::kBlockEnd) ||
         stream_.at_operator(")") || (!end_name.empty() && stream_.at_name(end_name));
}

ExpressionPointer ExpressionParser::parse_tuple(bool with_condition, std::string_view end_name,
                                                bool in_parentheses) {
  auto tuple = make(ExpressionKind::kTuple, stream_.current().line);
  bool is_tuple = false;
  while (true) {
    if (!tuple->operands.empty()) stream_.expect_operator(",");
    if (at_tuple_end(end_name)) break;
    tuple->operands.push_back(parse(with_condition));
    if (!stream_.at_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !tuple->operands.empty()) return std::move(tuple->operands[0]);
  if (!is_tuple && !in_parentheses) stream_.fail_expected("an expression");
  return finish(std::move(tuple));
}

ExpressionPointer ExpressionParser::parse_list() {
  auto list = make(ExpressionKind::kList, stream_.next().line);
  while (!stream_.at_operator("]")) {
    if (!list->operands.empty()) stream_.expect_operator(",");
    if (stream_.at_operator("]")) break;
    list->operands.push_back(parse());
  }
  stream_.next();
  return finish(std::move(list));
}

ExpressionPointer ExpressionParser::parse_dict() {
  auto dict = make(ExpressionKind::kDict, stream_.next().line);
  while (!stream_.at_operator("}")) {
    if (!dict->operands.empty()) stream_.expect_operator(",");
    if (stream_.at_operator("}")) break;
    dict->operands.push_back(parse());
    stream_.expect_operator(":");
    dict->operands.push_back(parse());
  }
  stream_.next();
  return finish(std::move(dict));
}

Target ExpressionParser::parse_target(bool with_namespace, std::string_view end_name) {
  const TokenStream::Level level(stream_);
  const auto parse_one = [&]() -> Target {
    const Token& token = stream_.current();
    if (stream_.skip_operator("(")) {
      Target inner = parse_target(with_namespace);
      stream_.expect_operator(")");
      return inner;
    }
    static constexpr std::array<std::string_view, 6> kConstants = {"true",  "True", "false",
                                                                   "False", "none", "None"};
    if (token.kind != TokenKind::kName ||
        std::ranges::find(kConstants, token.text) != kConstants.end()) {
      stream_.fail_at(token.line, fmt::format("cannot assign to {}", stream_.describe_current()));
    }
    Target target;
    target.symbol = symbols_.intern(stream_.next().text);
    if (with_namespace && stream_.skip_operator(".")) {
      target.kind = Target::Kind::kAttribute;
      target.attribute = stream_.expect(TokenKind::kName, "name").text;
      names_read_.push_back(target.symbol);
    }
    return target;
  };
  Target tuple;
  tuple.kind = Target::Kind::kTuple;
  bool is_tuple = false;
  while (true) {
    if (!tuple.items.empty()) stream_.expect_operator(",");
    if (at_tuple_end(end_name) || (is_tuple && stream_.at_operator("="))) break;
    tuple.items.push_back(parse_one());
    if (!stream_.at_operator(",")) break;
    is_tuple = true;
  }
  if (tuple.items.empty()) stream_.fail_expected("a name");
  if (!is_tuple) return std::move(tuple.items[0]);
  return tuple;
}

void ExpressionParser::note_unknown(uint32_t line, std::string message) {
  if (!conditional_) unknown_.push_back({line, std::move(message)});
}

}  // namespace lockstep::jinja
