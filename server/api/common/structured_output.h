// The form that a request asks of its answer: response_format, and the fields of other servers that
// say the same.
#pragma once

#include <optional>
#include <string>

#include "engine/engine.h"
#include "server/api/common/json_fields.h"
#include "server/api/common/served_model.h"

namespace lockstep {

struct StructuredOutput {
  GrammarSource source;
  std::string parameter;  // the field that asks for it, for errors
};

// Errors stay in `fields`; more than one field that asks for something is one.
std::optional<StructuredOutput> parse_structured_output(JsonFields& fields);

// 400 about the field if it cannot be compiled. Null for nothing.
ApiResult<std::shared_ptr<const Grammar>> compile_structured_output(
    const ServedModel& model, const std::optional<StructuredOutput>& wanted);

}  // namespace lockstep
