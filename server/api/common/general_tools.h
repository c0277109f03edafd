// Tools for a model whose chat template knows none: all about them is put into the messages as
// text, so that any template can render it.
#pragma once

#include "server/api/common/call_syntax.h"
#include "server/api/common/tool_use.h"

namespace lockstep {

// Rewrites `messages`, as chat templates take them, to messages with text alone. Earlier calls are
// text of the assistant's in the syntax of the family; results are a user's message, those that
// follow one another and what the user says then being one, since many templates want turns to
// alternate. Where the tools are active, what they are and how they are called is told in the
// system's message, or before the user's first words where the template takes none.
void write_general_tools(const ChatFamily& family, const ToolUse& tools, Json& messages);

}  // namespace lockstep
