#include "engine/text/jinja/interpreter.h"

#include <algorithm>

#include "engine/text/jinja/format.h"
#include "engine/text/jinja/objects.h"
#include "engine/text/jinja/operations.h"

namespace lockstep::jinja {

Interpreter::Interpreter(const Template& program, Heap& heap, std::shared_ptr<Scope> globals,
                         TextBuilder& output)
    : program_(program),
      heap_(heap),
      globals_(std::move(globals)),
      root_(std::make_shared<Scope>(globals_)),
      scope_(root_),
      output_(&output) {}

void Interpreter::run() {
  execute(program_.body);
}

Interpreter::Flow Interpreter::execute(const Block& block) {
  for (const auto& statement : block) {
    const Flow flow = execute(*statement);
    if (flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

Interpreter::Flow Interpreter::execute(const Statement& statement) {
  const Level level(*this);
  line_ = statement.line;
  switch (statement.kind) {
    case StatementKind::kText:
      output_->append(statement.text);
      break;
    case StatementKind::kPrint:
      for (const auto& expression : statement.expressions) print(evaluate(*expression));
      break;
    case StatementKind::kFor:
      execute_for(statement);
      break;
    case StatementKind::kIf:
      return execute_if(statement);
    case StatementKind::kSet:
      assign(statement.targets[0], evaluate(*statement.expressions[0]));
      break;
    case StatementKind::kSetBlock:
      return execute_set_block(statement);
    case StatementKind::kMacro:
      scope_->set(statement.symbol, Value(std::shared_ptr<Object>(std::make_shared<Macro>(
                                        heap_, *this, *statement.macro, scope_))));
      break;
    case StatementKind::kCall:
      execute_call(statement);
      break;
    case StatementKind::kFilterBlock:
      return execute_filter_block(statement);
    case StatementKind::kWith:
      return execute_with(statement);
    case StatementKind::kScope:
      return execute_scope(statement);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
    case StatementKind::kRefused:
      fail("'{}' needs other templates, and a chat template has none", statement.text);
  }
  return Flow::kOn;
}

void Interpreter::print(const Value& value) {
  append_str(heap_, value, *output_);
}

Interpreter::Flow Interpreter::execute_if(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (truth(heap_, evaluate(*branch.condition))) return execute(branch.body);
  }
  return execute(statement.otherwise);
}

void Interpreter::execute_for(const Statement& statement) {
  const Value iterable = evaluate(*statement.expressions[0]);
  line_ = statement.line;
  run_loop(statement, scope_, iterable, 0);
}

void Interpreter::run_loop(const Statement& statement, const std::shared_ptr<Scope>& outer_scope,
                           const Value& iterable, uint32_t depth) {
  const std::shared_ptr<Scope> outer = outer_scope;
  LoopSource source(*this, heap_, statement, outer, iterable);
  const auto loop = std::make_shared<Loop>(heap_, source, depth);
  struct Finish {
    Loop& loop;
    ~Finish() { loop.finish(); }
  } const finish{*loop};
  bool completed = false;  // a body ran to its end; one that was left does not count, as in Jinja2
  std::shared_ptr<Scope> inner;
  while (const auto item = loop->advance()) {
    if (inner != nullptr && inner.use_count() == 1) {
      inner->variables.clear();
    } else {
      inner = std::make_shared<Scope>(outer);
    }
    const ScopeGuard guard(*this, inner);
    inner->set(program_.known.loop, Value(std::shared_ptr<Object>(loop)));
    assign(statement.targets[0], *item);
    const Flow flow = execute(statement.body);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kOn) completed = true;
  }
  if (!completed && !statement.otherwise.empty()) {
    const ScopeGuard guard(*this, std::make_shared<Scope>(outer));
    execute(statement.otherwise);
  }
}

bool Interpreter::passes(const Statement& loop, const std::shared_ptr<Scope>& outer,
                         const Value& item) {
  const ScopeGuard guard(*this, std::make_shared<Scope>(outer));
  assign(loop.targets[0], item);
  return truth(heap_, evaluate(*loop.expressions[1]));
}

Interpreter::Flow Interpreter::execute_set_block(const Statement& statement) {
  Value value;
  {
    const ScopeGuard guard(*this, std::make_shared<Scope>(scope_));
    Capture capture(*this);
    const Flow flow = execute(statement.body);
    if (flow != Flow::kOn) return flow;
    value = capture.finish();
    if (statement.expressions[0] != nullptr) {
      value = evaluate_filter(*statement.expressions[0], &value);
    }
  }
  assign(statement.targets[0], value);
  return Flow::kOn;
}

Interpreter::Flow Interpreter::execute_filter_block(const Statement& statement) {
  const ScopeGuard guard(*this, std::make_shared<Scope>(scope_));
  Value value;
  {
    Capture capture(*this);
    const Flow flow = execute(statement.body);
    if (flow != Flow::kOn) return flow;
    value = capture.finish();
  }
  print(evaluate_filter(*statement.expressions[0], &value));
  return Flow::kOn;
}

void Interpreter::execute_call(const Statement& statement) {
  Value caller(
      std::shared_ptr<Object>(std::make_shared<Macro>(heap_, *this, *statement.macro, scope_)));
  print(evaluate_call(*statement.expressions[0], std::move(caller)));
}

Interpreter::Flow Interpreter::execute_with(const Statement& statement) {
  auto inner = std::make_shared<Scope>(scope_);
  std::vector<Value> values;
  for (const auto& expression : statement.expressions) values.push_back(evaluate(*expression));
  const ScopeGuard guard(*this, std::move(inner));
  for (size_t index = 0; index < values.size(); ++index) {
    assign(statement.targets[index], values[index]);
  }
  return execute(statement.body);
}

Interpreter::Flow Interpreter::execute_scope(const Statement& statement) {
  const ScopeGuard guard(*this, std::make_shared<Scope>(statement.isolated ? root_ : scope_));
  return execute(statement.body);
}

void Interpreter::assign(const Target& target, const Value& value) {
  heap_.step(1 + scope_->variables.size() / 16);
  if (target.kind == Target::Kind::kName) {
    scope_->set(target.symbol, value);
    return;
  }
  if (target.kind == Target::Kind::kAttribute) {
    const Value* space = nullptr;
    for (const Scope* scope = scope_.get(); scope != nullptr && space == nullptr;
         scope = scope->parent.get()) {
      space = scope->find(target.symbol);
    }
    auto* found = space == nullptr ? nullptr : space->object_as<Namespace>();
    if (found == nullptr) {
      fail("cannot assign the attribute '{}' of '{}': it is no namespace", target.attribute,
           program_.symbols.name(target.symbol));
    }
    const Value keep = *space;  // setting may drop the last other reference
    found->set(target.attribute, value);
    return;
  }
  const size_t expected = target.items.size();
  std::vector<Value> items;
  Iterator iterator(heap_, value);
  while (auto item = iterator.next()) {
    if (items.size() == expected) fail("too many values to unpack (expected {})", expected);
    items.push_back(std::move(*item));
  }
  if (items.size() < expected) {
    fail("not enough values to unpack (expected {}, got {})", expected, items.size());
  }
  for (size_t index = 0; index < expected; ++index) assign(target.items[index], items[index]);
}

Value Interpreter::call_loop(const Statement& loop, const std::shared_ptr<Scope>& outer,
                             const Value& iterable, uint32_t depth) {
  const CallLevel level(*this);
  const std::shared_ptr<Scope> keep = outer;
  Capture capture(*this);
  run_loop(loop, keep, iterable, depth);
  return capture.finish();
}

Value Interpreter::call_macro(const MacroDefinition& macro, const std::weak_ptr<Scope>& closure,
                              Arguments arguments) {
  const CallLevel level(*this);
  auto parent = closure.lock();
  auto inner = std::make_shared<Scope>(parent != nullptr ? std::move(parent) : root_);
  arguments = bind_special(macro, *inner, std::move(arguments));
  const ScopeGuard guard(*this, inner);
  const size_t positional = std::min(arguments.positional.size(), macro.parameters.size());
  std::vector<bool> given(macro.parameters.size());
  for (size_t index = 0; index < macro.parameters.size(); ++index) {
    const MacroParameter& parameter = macro.parameters[index];
    const auto named =
        std::ranges::find(arguments.named, parameter.name, &std::pair<std::string, Value>::first);
    given[index] = index < positional || named != arguments.named.end();
    if (!given[index]) continue;
    inner->set(parameter.symbol, index < positional ? arguments.positional[index] : named->second);
  }
  for (size_t index = 0; index < macro.parameters.size(); ++index) {
    const MacroParameter& parameter = macro.parameters[index];
    if (given[index]) continue;
    inner->set(parameter.symbol, parameter.otherwise != nullptr
                                     ? evaluate(*parameter.otherwise)
                                     : Value::undefined(fmt::format(
                                           "parameter '{}' was not provided", parameter.name)));
  }
  Capture capture(*this);
  execute(macro.body);
  return capture.finish();
}

// Sets caller, varargs and kwargs where the macro speaks of them; what is left over otherwise is
// an error. Gives back the arguments for the parameters.
Arguments Interpreter::bind_special(const MacroDefinition& macro, Scope& scope,
                                    Arguments arguments) {
  const size_t count = macro.parameters.size();
  if (arguments.positional.size() > count) {
    if (!macro.uses_varargs) {
      fail("macro '{}' takes not more than {} argument(s)", macro.name, count);
    }
    const auto rest = arguments.positional.begin() + static_cast<std::ptrdiff_t>(count);
    scope.set(program_.known.varargs,
              make_tuple(heap_, std::vector<Value>(rest, arguments.positional.end())));
    arguments.positional.erase(rest, arguments.positional.end());
  } else if (macro.uses_varargs) {
    scope.set(program_.known.varargs, make_tuple(heap_, {}));
  }
  Arguments kept;
  Value caller = Value::undefined("no caller defined");
  std::vector<DictData::Entry> extra;
  for (auto& [name, value] : arguments.named) {
    const auto parameter = std::ranges::find(macro.parameters, name, &MacroParameter::name);
    const auto index = static_cast<size_t>(parameter - macro.parameters.begin());
    if (parameter != macro.parameters.end() && index >= arguments.positional.size()) {
      kept.named.emplace_back(name, std::move(value));
    } else if (macro.uses_caller && name == "caller") {
      if (!value.is_none()) caller = std::move(value);
    } else if (macro.uses_kwargs) {
      extra.emplace_back(make_foreign_string(heap_, name), std::move(value));
    } else {
      fail("macro '{}' takes no keyword argument '{}'", macro.name, name);
    }
  }
  kept.positional = std::move(arguments.positional);
  if (macro.uses_caller) scope.set(program_.known.caller, std::move(caller));
  if (macro.uses_kwargs) scope.set(program_.known.kwargs, make_dict(heap_, std::move(extra)));
  return kept;
}

}  // namespace lockstep::jinja
