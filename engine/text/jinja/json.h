// Values from and to JSON, as Python's json module writes it.
#pragma once

#include <string>

#include "engine/base/json.h"
#include "engine/text/jinja/value.h"

namespace lockstep::jinja {

// Fails for what a template cannot hold: nesting beyond the budget, integers beyond 64 bits.
Value from_json(Heap& heap, const nlohmann::ordered_json& json);

struct JsonStyle {
  bool ensure_ascii = false;
  bool pretty = false;  // one item per line, each level after one more `indent`
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

// json.dumps; fails for what JSON has no form for, such as an undefined value.
std::string to_json(Heap& heap, const Value& value, const JsonStyle& style);

}  // namespace lockstep::jinja
