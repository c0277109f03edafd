// The tools of a request: which functions the model may call, and whether it must.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api/common/json_fields.h"

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

// The functions as chat templates want them.
Json template_tools(const ToolUse& tools);

// The arguments of an earlier call, which clients send as a JSON text, as templates want them: an
// object. Refused as field `name` where it is none.
Json parse_call_arguments(JsonFields& fields, std::string_view name);

// An earlier call, as templates want it.
Json template_call(std::string id, std::string name, Json arguments);

}  // namespace lockstep
