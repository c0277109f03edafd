// The values that the parameters of a function admit, as far as a syntax needs it that writes them
// without quotes.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "engine/base/json.h"
#include "server/api/common/turn_syntax.h"

namespace lockstep {

struct ParameterKind {
  bool raw = false;  // a text, written as it is; otherwise JSON, or a text that is none
  // The JSON types that it may have, as bits; all if the schema does not say.
  unsigned types = ~0U;
};

// By the parameter's name. Where pairs hold pairs, also by a path: the keys that lead to a value,
// with PairSyntax::key_end between them. What is not there may be anything.
using ParameterKinds = std::map<std::string, ParameterKind, std::less<>>;

// The kinds of a function's parameters, a JSON schema or null, as the family writes them.
ParameterKinds find_parameter_kinds(const Json& parameters, const PairSyntax& pairs);

// Whether it admits the JSON type of this name.
bool admits(const ParameterKind& kind, std::string_view type);

// The name in JSON of the type that the kind admits; "object" for texts that are written as JSON,
// and for any of several types.
std::string_view type_name(const ParameterKind& kind);

// The JSON text of a value that the family writes as `text`: the text itself where it is a JSON
// value of the kind, or Python's name of one; otherwise the string.
std::string argument_value(std::string_view text, const ParameterKind& kind);

// The bytes of a text as a JSON string has them, without its quotes.
void append_json_string(std::string_view text, std::string& json);

}  // namespace lockstep
