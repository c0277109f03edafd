// The tools of a request: which functions the model may call, and whether it must.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/common/json_fields.h"
#include "server/api/common/structured_output.h"
#include "server/api/common/turn_syntax.h"

namespace lockstep {

struct ToolFunction {
  std::string name;
  std::string description;
  Json parameters;  // a JSON schema; null: none given
};

struct ToolUse {
  enum class Choice { kNone, kAuto, kRequired };

  std::vector<ToolFunction> functions;
  Choice choice = Choice::kAuto;
  std::string named;     // with kRequired: the function to call; empty: any
  bool parallel = true;  // whether one turn may hold several calls

  // Whether the model is told of the functions.
  bool active() const { return choice != Choice::kNone && !functions.empty(); }
  std::vector<std::string> names() const;
};

// "tools", "tool_choice" and "parallel_tool_calls" as /v1/chat/completions words them
// ({"type":"function","function":{…}}) and as /v1/responses does ({"type":"function","name":…});
// errors stay in `fields`.
ToolUse parse_chat_tools(JsonFields& fields);
ToolUse parse_response_tools(JsonFields& fields);

// Adds a function whose name is read from `tool`; refuses names that are wrong or there already.
void add_function(ToolUse& tools, JsonFields& tool, const Json* parameters);

// Refuses a choice that the functions do not allow, as field `name`.
void check_tool_choice(JsonFields& fields, std::string_view name, const ToolUse& tools);

// The functions as chat templates want them. `describes_all`: those without a description have an
// empty one, and those without parameters the schema of no members.
Json template_tools(const ToolUse& tools, bool describes_all = false);

// The arguments of an earlier call, which clients send as a JSON text, as templates want them: an
// object. Refused as field `name` where it is none.
Json parse_call_arguments(JsonFields& fields, std::string_view name);

// An earlier call, as templates want it.
Json template_call(std::string id, std::string name, Json arguments);

// The constraint of a turn that may or must call tools: calls alone where the tools are required;
// where they are not, calls or what the answer must be, or nothing for an answer that may be
// anything. 400 for an answer that cannot be an alternative, for parameters whose names the
// family's syntax cannot write, and for functions whose names mean something else in it.
ApiResult<std::optional<StructuredOutput>> constrain_turn(
    const ChatFamily& family, const ToolUse& tools, const std::optional<StructuredOutput>& answer);

// Puts the calls of earlier turns into the messages as text, for a family whose template takes
// tools and writes no calls: objects, or calls in Python's syntax, in lists or each in a group of
// its own. `secret`, a text
// that no message can know, stands for the mark that opens a group of calls, and for the one that
// closes it.
void write_calls(const CallSyntax& syntax, std::string_view secret, Json& messages);

// Puts the marks into the rendered text in place of `secret`: they are no request's words, so they
// become control tokens.
void put_call_marks(const CallSyntax& syntax, std::string_view secret, TracedText& text);

// Tools for a model whose chat template knows none: all about them is put into the messages as
// text, so that any template can render it.
//
// Rewrites `messages`, as chat templates take them, to messages with text alone. Earlier calls are
// text of the assistant's in the syntax of the family; results are a user's message, those that
// follow one another and what the user says then being one, since many templates want turns to
// alternate. Where the tools are active, what they are and how they are called is told in the
// system's message, or before the user's first words where the template takes none.
void write_general_tools(const ChatFamily& family, const ToolUse& tools, Json& messages);

}  // namespace lockstep
