// What constrains a turn that may or must call tools.
#pragma once

#include <optional>

#include "server/api/common/call_syntax.h"
#include "server/api/common/structured_output.h"
#include "server/api/common/tool_use.h"

namespace lockstep {

// Calls alone where the tools are required; where they are not, calls or what the answer must be,
// or nothing for an answer that may be anything. 400 for an answer that cannot be an alternative.
ApiResult<std::optional<StructuredOutput>> constrain_turn(
    const CallSyntax& syntax, const ToolUse& tools, const std::optional<StructuredOutput>& answer);

}  // namespace lockstep
