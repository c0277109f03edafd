// The tests: what may follow `is`.
#include <algorithm>

#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/operations.h"

namespace lockstep::jinja {

namespace {

using Predicate = bool (*)(const Value& value);

template <Predicate predicate>
Value answer(Heap&, BoundArguments& arguments) {
  return Value(predicate(arguments.self()));
}

template <Operator operation>
Value compared(Heap& heap, BoundArguments& arguments) {
  return Value(compare(heap, operation, arguments.self(), arguments.value(0)));
}

bool is_defined(const Value& value) {
  return !value.is_undefined();
}
bool is_undefined(const Value& value) {
  return value.is_undefined();
}
bool is_none(const Value& value) {
  return value.is_none();
}
bool is_boolean(const Value& value) {
  return value.is_boolean();
}
bool is_true(const Value& value) {
  return value.is_boolean() && value.boolean();
}
bool is_false(const Value& value) {
  return value.is_boolean() && !value.boolean();
}
bool is_integer(const Value& value) {
  return value.is_integer();
}
bool is_float(const Value& value) {
  return value.is_float();
}
bool is_number(const Value& value) {
  return value.is_number();
}
bool is_string(const Value& value) {
  return value.is_string();
}
bool is_mapping(const Value& value) {
  return value.dict() != nullptr;
}
bool is_escaped(const Value& value) {
  return value.is_markup();
}

bool is_sequence(const Value& value) {
  if (const Object* object = value.object()) return object->type_name() == "range";
  return is_iterable(value);
}

bool is_callable(const Value& value) {
  const Object* object = value.object();
  return value.is_undefined() || (object != nullptr && object->callable());
}

Value remainder_is(Heap& heap, const Value& value, const Value& divisor, int64_t wanted) {
  const Value remainder = arithmetic(heap, Operator::kModulo, value, divisor);
  return Value(equal(heap, remainder, Value(wanted)));
}

Value is_odd(Heap& heap, BoundArguments& arguments) {
  return remainder_is(heap, arguments.self(), Value(int64_t{2}), 1);
}

Value is_even(Heap& heap, BoundArguments& arguments) {
  return remainder_is(heap, arguments.self(), Value(int64_t{2}), 0);
}

Value is_divisible(Heap& heap, BoundArguments& arguments) {
  return remainder_is(heap, arguments.self(), arguments.value(0), 0);
}

// Whether there are letters with a case, and all of them of the wanted one.
Value has_case(Heap& heap, const Value& value, bool (*wanted)(uint32_t), bool (*other)(uint32_t)) {
  const std::string text = to_str(heap, value).text;
  heap.step_bytes(text.size());
  bool found = false;
  for (std::string_view rest = text; !rest.empty();) {
    const Character character = first_character(rest);
    if (other(character.code_point) || is_title(character.code_point)) return Value(false);
    found = found || wanted(character.code_point);
    rest.remove_prefix(character.bytes);
  }
  return Value(found);
}

Value is_lower_case(Heap& heap, BoundArguments& arguments) {
  return has_case(heap, arguments.self(), is_lower, is_upper);
}

Value is_upper_case(Heap& heap, BoundArguments& arguments) {
  return has_case(heap, arguments.self(), is_upper, is_lower);
}

Value is_same_as(Heap&, BoundArguments& arguments) {
  return Value(arguments.self().same_as(arguments.value(0)));
}

Value is_in(Heap& heap, BoundArguments& arguments) {
  return Value(contains(heap, arguments.value(0), arguments.self()));
}

Value is_filter(Heap&, BoundArguments& arguments) {
  const Value& self = arguments.self();
  return Value(self.is_string() && find_filter(self.text()) != nullptr);
}

Value is_test(Heap&, BoundArguments& arguments) {
  const Value& self = arguments.self();
  return Value(self.is_string() && find_test(self.text()) != nullptr);
}

constexpr Native kTests[] = {
    {"!=", compared<Operator::kNotEqual>, 1, {"b"}},
    {"<", compared<Operator::kLess>, 1, {"b"}},
    {"<=", compared<Operator::kLessEqual>, 1, {"b"}},
    {"==", compared<Operator::kEqual>, 1, {"b"}},
    {">", compared<Operator::kGreater>, 1, {"b"}},
    {">=", compared<Operator::kGreaterEqual>, 1, {"b"}},
    {"boolean", answer<is_boolean>},
    {"callable", answer<is_callable>},
    {"defined", answer<is_defined>},
    {"divisibleby", is_divisible, 1, {"num"}},
    {"eq", compared<Operator::kEqual>, 1, {"b"}},
    {"equalto", compared<Operator::kEqual>, 1, {"b"}},
    {"escaped", answer<is_escaped>},
    {"even", is_even},
    {"false", answer<is_false>},
    {"filter", is_filter},
    {"float", answer<is_float>},
    {"ge", compared<Operator::kGreaterEqual>, 1, {"b"}},
    {"greaterthan", compared<Operator::kGreater>, 1, {"b"}},
    {"gt", compared<Operator::kGreater>, 1, {"b"}},
    {"in", is_in, 1, {"seq"}},
    {"integer", answer<is_integer>},
    {"iterable", answer<is_iterable>},
    {"le", compared<Operator::kLessEqual>, 1, {"b"}},
    {"lessthan", compared<Operator::kLess>, 1, {"b"}},
    {"lower", is_lower_case},
    {"lt", compared<Operator::kLess>, 1, {"b"}},
    {"mapping", answer<is_mapping>},
    {"ne", compared<Operator::kNotEqual>, 1, {"b"}},
    {"none", answer<is_none>},
    {"number", answer<is_number>},
    {"odd", is_odd},
    {"sameas", is_same_as, 1, {"other"}},
    {"sequence", answer<is_sequence>},
    {"string", answer<is_string>},
    {"test", is_test},
    {"true", answer<is_true>},
    {"undefined", answer<is_undefined>},
    {"upper", is_upper_case},
};

}  // namespace

const Native* find_test(std::string_view name) {
  const auto found = std::ranges::find(kTests, name, &Native::name);
  return found == std::end(kTests) ? nullptr : found;
}

}  // namespace lockstep::jinja
