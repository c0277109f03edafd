// Arguments of calls, and the rows of the tables of filters, tests, methods and functions.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "engine/text/jinja/value.h"

namespace lockstep::jinja {

struct Native;

// The arguments of one call, put where the callee's parameters are.
class BoundArguments {
 public:
  BoundArguments(Heap& heap, const Native& native, const Value& self, Arguments arguments);

  const Value& self() const { return self_; }
  // Only for callees that take any number of arguments.
  Arguments& all() { return all_; }

  bool has(size_t index) const { return given_[index]; }
  const Value& value(size_t index) const { return values_[index]; }  // None when not given
  bool truth(size_t index, bool otherwise) const;
  int64_t integer(size_t index, int64_t otherwise) const;  // fails for what is no integer
  std::string_view text(size_t index) const;               // fails for what is no string
  std::string_view text(size_t index, std::string_view otherwise) const;

 private:
  static constexpr size_t kMost = 5;
  Heap& heap_;
  const Native& native_;
  const Value& self_;
  Arguments all_;
  std::array<Value, kMost> values_;
  std::array<bool, kMost> given_{};
};

// A row: what a name does to a value (self) and arguments.
struct Native {
  static constexpr size_t kAnyNumber = 99;

  std::string_view name;
  Value (*function)(Heap& heap, BoundArguments& arguments);
  size_t required = 0;  // of the parameters; kAnyNumber: takes what comes
  std::array<std::string_view, 5> parameters{};
};

Value call_native(Heap& heap, const Native& native, const Value& self, Arguments arguments);

// The row of a name; nullptr when there is none.
const Native* find_filter(std::string_view name);
const Native* find_test(std::string_view name);
const Native* find_method(const Value& self, std::string_view name);
const Native* find_function(std::string_view name);  // of the globals

// The tables of filters and of methods of strings, by file.
std::span<const Native> text_filters();
std::span<const Native> number_filters();
std::span<const Native> sequence_filters();
std::span<const Native> selection_filters();

std::span<const Native> string_methods();
std::span<const Native> string_searches();

}  // namespace lockstep::jinja
