// Walking what can be walked, one item at a time.
#pragma once

#include <optional>
#include <vector>

#include "engine/text/jinja/value.h"

namespace lockstep::jinja {

bool is_iterable(const Value& value);

// The items of a value, made as they are asked for. Each costs a step.
class Iterator {
 public:
  // Fails for what cannot be walked.
  Iterator(Heap& heap, const Value& value);

  std::optional<Value> next();

 private:
  Heap& heap_;
  Value value_;
  uint64_t position_ = 0;  // an index, or a string's byte
};

std::vector<Value> items_of(Heap& heap, const Value& value);

}  // namespace lockstep::jinja
