#include "server/api/common/tool_grammar.h"

#include <utility>

namespace lockstep {
namespace {

using Kind = GrammarSource::Kind;

constexpr int kCallsMax = 16;  // of one turn

Json literal(std::string text) {
  return {{"literal", std::move(text)}};
}

// Arguments are an object, whatever else their schema says.
Json arguments_schema(const Json& parameters) {
  if (!parameters.is_object()) return {{"type", "object"}};
  Json schema = parameters;
  if (!schema.contains("type")) schema["type"] = "object";
  return schema;
}

// The object of one call: of the named function, or of any.
Json call_part(const CallSyntax& syntax, const ToolUse& tools) {
  Json any = Json::array();
  for (const ToolFunction& function : tools.functions) {
    if (!tools.named.empty() && function.name != tools.named) continue;
    const std::string head =
        fmt::format(R"({{"name": "{}", "{}": )", function.name, syntax.arguments);
    any.push_back(Json::array(
        {literal(head), {{"schema", arguments_schema(function.parameters)}}, literal("}")}));
  }
  return {{"any_of", std::move(any)}};
}

// Groups of calls, as models of the family write them.
Json calls_part(const CallSyntax& syntax, const ToolUse& tools) {
  const int most = tools.parallel && syntax.parallel ? kCallsMax : 1;
  const std::string list_open(syntax.list_open);
  // A call without a mark is what such a family writes.
  const std::string open = syntax.bare ? "" : std::string(syntax.open) + list_open;
  const std::string close(syntax.close);
  Json call = call_part(syntax, tools);
  if (syntax.separator.empty()) {
    call = Json::array({literal(open + "\n"), std::move(call), literal("\n" + close)});
    return {{"repeat", std::move(call)}, {"min", 1}, {"max", most}, {"separator", "\n"}};
  }
  Json calls = {{"repeat", std::move(call)},
                {"min", 1},
                {"max", most},
                {"separator", std::string(syntax.separator) + " "}};
  if (open.empty() && close.empty()) return calls;
  return Json::array({literal(open), std::move(calls), literal(close)});
}

// What the answer must be, as a part; null where it cannot be one.
Json answer_part(const StructuredOutput& answer) {
  const auto json = parse_json(answer.source.text);
  switch (answer.source.kind) {
    case Kind::kJsonObject:
      return {{"schema", {{"type", "object"}}}};
    case Kind::kJsonSchema:
      return json ? Json{{"schema", *json}} : Json(nullptr);
    case Kind::kRegex:
      return {{"regex", answer.source.text}};
    default:
      return nullptr;
  }
}

}  // namespace

ApiResult<std::optional<StructuredOutput>> constrain_turn(
    const CallSyntax& syntax, const ToolUse& tools, const std::optional<StructuredOutput>& answer) {
  const bool required = tools.choice == ToolUse::Choice::kRequired;
  if (!required && !answer) return std::nullopt;
  Json part = calls_part(syntax, tools);
  if (!required) {
    Json other = answer_part(*answer);
    if (other.is_null()) {
      return std::unexpected(bad_parameter(
          answer->parameter, fmt::format("'{}': cannot go with tools; take a schema or a pattern",
                                         answer->parameter)));
    }
    part = {{"any_of", Json::array({std::move(other), std::move(part)})}};
  }
  return StructuredOutput{{Kind::kTemplate, to_text(part)}, "tools"};
}

}  // namespace lockstep
