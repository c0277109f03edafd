// An attribute as filters name it: "author.name", "0.title" or an index.
#pragma once

#include <vector>

#include "engine/text/jinja/value.h"

namespace lockstep::jinja {

class AttributePath {
 public:
  // None names the item itself.
  AttributePath(Heap& heap, const Value& attribute);

  // `otherwise` stands for an undefined attribute unless it is None.
  Value get(const Value& item, const Value& otherwise = {}) const;

 private:
  Heap& heap_;
  std::vector<Value> parts_;
};

// The key that the sorting filters compare: a string in lower case unless case matters.
Value sort_key(Heap& heap, Value value, bool case_sensitive);

}  // namespace lockstep::jinja
