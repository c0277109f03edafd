#include <algorithm>
#include <array>

#include "engine/text/jinja/format.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/operations.h"

namespace lockstep::jinja {

void fail_depth(const char* what, uint32_t limit) {
  Failure failure{
      fmt::format("{} nest deeper than {} levels: the depth budget is spent", what, limit)};
  failure.budget = true;
  throw failure;
}

Value Interpreter::evaluate(const Expression& expression) {
  const Level level(*this);
  line_ = expression.line;
  return evaluate_kind(expression);
}

Value Interpreter::evaluate_kind(const Expression& expression) {
  switch (expression.kind) {
    case ExpressionKind::kConstant:
      return expression.constant;
    case ExpressionKind::kName:
      return evaluate_name(expression);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
      return evaluate_items(expression);
    case ExpressionKind::kDict:
      return evaluate_dict(expression);
    case ExpressionKind::kAttribute:
      return get_attribute(heap_, evaluate(*expression.operands[0]), expression.name);
    case ExpressionKind::kItem: {
      const Value object = evaluate(*expression.operands[0]);
      return get_item(heap_, object, evaluate(*expression.operands[1]));
    }
    case ExpressionKind::kSlice:
      return evaluate_slice(expression);
    case ExpressionKind::kCall:
      return evaluate_call(expression, std::nullopt);
    case ExpressionKind::kFilter:
      return evaluate_filter(expression, nullptr);
    case ExpressionKind::kTest:
      return evaluate_test(expression);
    case ExpressionKind::kNegative:
      return negative(evaluate(*expression.operands[0]));
    case ExpressionKind::kPositive:
      return positive(evaluate(*expression.operands[0]));
    case ExpressionKind::kNot:
      return Value(!truth(heap_, evaluate(*expression.operands[0])));
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr:
      return evaluate_choice(expression);
    case ExpressionKind::kArithmetic:
      return evaluate_arithmetic(expression);
    case ExpressionKind::kConcatenate:
      return evaluate_concatenation(expression);
    case ExpressionKind::kCompare:
      return evaluate_comparison(expression);
    case ExpressionKind::kConditional:
      if (truth(heap_, evaluate(*expression.operands[0]))) return evaluate(*expression.operands[1]);
      if (expression.operands[2] != nullptr) return evaluate(*expression.operands[2]);
      return Value::undefined(
          "the inline if-expression evaluated to false and no else section was defined");
  }
  return {};
}

Value Interpreter::evaluate_name(const Expression& expression) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    heap_.step(scope->variables.size() / 16);
    if (const Value* value = scope->find(expression.symbol)) return *value;
  }
  return Value::undefined(
      fmt::format("'{}' is undefined", program_.symbols.name(expression.symbol)));
}

Value Interpreter::evaluate_items(const Expression& expression) {
  std::vector<Value> items;
  items.reserve(expression.operands.size());
  for (const auto& operand : expression.operands) items.push_back(evaluate(*operand));
  return expression.kind == ExpressionKind::kList ? make_list(heap_, std::move(items))
                                                  : make_tuple(heap_, std::move(items));
}

Value Interpreter::evaluate_dict(const Expression& expression) {
  std::vector<DictData::Entry> entries;
  for (size_t index = 0; index < expression.operands.size(); index += 2) {
    Value key = evaluate(*expression.operands[index]);
    entries.emplace_back(std::move(key), evaluate(*expression.operands[index + 1]));
  }
  return make_dict(heap_, std::move(entries));
}

Value Interpreter::evaluate_slice(const Expression& expression) {
  std::array<Value, 4> parts;
  for (size_t index = 0; index < parts.size(); ++index) {
    const auto& operand = expression.operands[index];
    if (operand != nullptr) parts[index] = evaluate(*operand);
  }
  line_ = expression.line;
  return get_slice(heap_, parts[0], parts[1], parts[2], parts[3]);
}

Arguments Interpreter::evaluate_arguments(const CallArguments& arguments) {
  Arguments result;
  for (const auto& argument : arguments.positional) {
    result.positional.push_back(evaluate(*argument));
  }
  for (const auto& [name, argument] : arguments.named) {
    result.named.emplace_back(name, evaluate(*argument));
  }
  if (arguments.spread != nullptr || arguments.spread_named != nullptr) {
    spread_arguments(arguments, result);
  }
  return result;
}

void Interpreter::spread_arguments(const CallArguments& arguments, Arguments& result) {
  if (arguments.spread != nullptr) {
    Iterator iterator(heap_, evaluate(*arguments.spread));
    while (auto item = iterator.next()) result.positional.push_back(std::move(*item));
  }
  if (arguments.spread_named == nullptr) return;
  const Value named = evaluate(*arguments.spread_named);
  if (named.dict() == nullptr) {
    fail("the argument after ** must be a mapping, not {}", describe(named));
  }
  for (const auto& [key, value] : named.dict()->entries) {
    if (!key.is_string()) fail("keywords must be strings, not {}", describe(key));
    heap_.step(1 + result.named.size() / 16);
    for (const auto& [name, given] : result.named) {
      if (name == key.text()) fail("argument '{}' is given twice", name);
    }
    result.named.emplace_back(key.text(), value);
  }
}

Value Interpreter::evaluate_call(const Expression& expression, std::optional<Value> caller) {
  const Expression& target = *expression.operands[0];
  const auto arguments = [&] {
    Arguments result = evaluate_arguments(expression.arguments);
    if (caller) {
      std::erase_if(result.named, [](const auto& argument) { return argument.first == "caller"; });
      result.named.emplace_back("caller", std::move(*caller));
    }
    line_ = expression.line;
    return result;
  };
  if (target.kind == ExpressionKind::kAttribute) {
    // A method that is called at once needs no object of its own.
    const Value object = evaluate(*target.operands[0]);
    if (const Native* method = find_method(object, target.name)) {
      return call_native(heap_, *method, object, arguments());
    }
    const Value callee = get_attribute(heap_, object, target.name);
    return call(callee, arguments());
  }
  const Value callee = evaluate(target);
  return call(callee, arguments());
}

Value Interpreter::call(const Value& callee, Arguments arguments) {
  require_defined(callee);
  Object* object = callee.object();
  if (object == nullptr || !object->callable()) {
    fail("'{}' object is not callable", type_name(callee));
  }
  return object->call(std::move(arguments));
}

Value Interpreter::evaluate_filter(const Expression& expression, const Value* input) {
  const Level level(*this);
  const auto& operand = expression.operands[0];
  Value value;
  if (operand == nullptr) {
    value = *input;
  } else {
    value = input != nullptr ? evaluate_filter(*operand, input) : evaluate(*operand);
  }
  Arguments arguments = evaluate_arguments(expression.arguments);
  line_ = expression.line;
  if (expression.native == nullptr) fail("there is no filter named '{}'", expression.name);
  return call_native(heap_, *expression.native, value, std::move(arguments));
}

Value Interpreter::evaluate_test(const Expression& expression) {
  const Value value = evaluate(*expression.operands[0]);
  Arguments arguments = evaluate_arguments(expression.arguments);
  line_ = expression.line;
  if (expression.native == nullptr) fail("there is no test named '{}'", expression.name);
  return call_native(heap_, *expression.native, value, std::move(arguments));
}

Value Interpreter::evaluate_choice(const Expression& expression) {
  const bool any = expression.kind == ExpressionKind::kOr;
  Value value;
  for (const auto& operand : expression.operands) {
    value = evaluate(*operand);
    if (truth(heap_, value) == any) break;
  }
  return value;
}

Value Interpreter::evaluate_arithmetic(const Expression& expression) {
  Value value = evaluate(*expression.operands[0]);
  for (size_t index = 0; index < expression.operators.size(); ++index) {
    const Value operand = evaluate(*expression.operands[index + 1]);
    line_ = expression.line;
    value = arithmetic(heap_, expression.operators[index], value, operand);
  }
  return value;
}

Value Interpreter::evaluate_concatenation(const Expression& expression) {
  TextBuilder text(heap_);
  for (const auto& operand : expression.operands) append_str(heap_, evaluate(*operand), text);
  return make_string(heap_, text.finish());
}

Value Interpreter::evaluate_comparison(const Expression& expression) {
  Value left = evaluate(*expression.operands[0]);
  for (size_t index = 0; index < expression.operators.size(); ++index) {
    Value right = evaluate(*expression.operands[index + 1]);
    line_ = expression.line;
    if (!compare(heap_, expression.operators[index], left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

}  // namespace lockstep::jinja
