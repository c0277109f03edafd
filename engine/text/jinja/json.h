// Values from and to JSON, as Python's json module writes it.
#pragma once

#include <string>

#include "engine/base/json.h"
#include "engine/text/jinja/value.h"

namespace lockstep::jinja {

// Fails for what a template cannot hold: nesting beyond the budget, integers beyond 64 bits.
// Where the strings of a variable come from.
enum class JsonOrigin {
  kOwn,       // the server, of the model
  kForeign,   // the request
  kMessages,  // the request, but for the roles of a list of messages: the server knows them
};
Value from_json(Heap& heap, const nlohmann::ordered_json& json, JsonOrigin origin);

struct JsonStyle {
  bool ensure_ascii = false;
  bool pretty = false;  // one item per line, each level after one more `indent`
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

// json.dumps; fails for what JSON has no form for, such as an undefined value.
TracedText to_json(Heap& heap, const Value& value, const JsonStyle& style);

}  // namespace lockstep::jinja
