#include "engine/text/jinja/arguments.h"

#include <algorithm>

namespace lockstep::jinja {

BoundArguments::BoundArguments(Heap& heap, const Native& native, const Value& self,
                               Arguments arguments)
    : heap_(heap), native_(native), self_(self), all_(std::move(arguments)) {
  if (native.required == Native::kAnyNumber) return;
  const auto& parameters = native.parameters;
  const auto end = std::ranges::find(parameters, std::string_view());
  const auto count = static_cast<size_t>(end - parameters.begin());
  if (all_.positional.size() > count) {
    fail("{}() takes at most {} arguments, {} were given", native.name, count,
         all_.positional.size());
  }
  for (size_t index = 0; index < all_.positional.size(); ++index) {
    values_[index] = std::move(all_.positional[index]);
    given_[index] = true;
  }
  for (auto& [name, value] : all_.named) {
    const auto parameter = std::find(parameters.begin(), end, std::string_view(name));
    if (parameter == end) {
      fail("{}() got an unexpected keyword argument '{}'", native.name, name);
    }
    const auto index = static_cast<size_t>(parameter - parameters.begin());
    if (given_[index]) fail("{}() got multiple values for argument '{}'", native.name, name);
    values_[index] = std::move(value);
    given_[index] = true;
  }
  for (size_t index = 0; index < native.required; ++index) {
    if (!given_[index]) {
      fail("{}() is missing its argument '{}'", native.name, parameters[index]);
    }
  }
}

bool BoundArguments::truth(size_t index, bool otherwise) const {
  return given_[index] ? jinja::truth(heap_, values_[index]) : otherwise;
}

int64_t BoundArguments::integer(size_t index, int64_t otherwise) const {
  if (!given_[index]) return otherwise;
  if (!values_[index].is_integral()) {
    fail("{}() needs an integer as '{}', not {}", native_.name, native_.parameters[index],
         describe(values_[index]));
  }
  return values_[index].integral();
}

std::string_view BoundArguments::text(size_t index) const {
  if (!values_[index].is_string()) {
    fail("{}() needs a string as '{}', not {}", native_.name, native_.parameters[index],
         describe(values_[index]));
  }
  return values_[index].text();
}

std::string_view BoundArguments::text(size_t index, std::string_view otherwise) const {
  return given_[index] ? text(index) : otherwise;
}

Value call_native(Heap& heap, const Native& native, const Value& self, Arguments arguments) {
  heap.step();
  BoundArguments bound(heap, native, self, std::move(arguments));
  return native.function(heap, bound);
}

}  // namespace lockstep::jinja
