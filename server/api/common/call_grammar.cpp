// The constraint of a turn: calls as the family writes them, by the row by which they are read.
#include <algorithm>
#include <utility>

#include "server/api/common/parameter_types.h"
#include "server/api/common/tool_use.h"

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

// Whether a key can be written between marks: nothing in it begins the mark that ends it.
bool is_key(std::string_view key, const PairSyntax& pairs) {
  const bool is_nested = !pairs.item_key.empty();
  if (is_nested && (key.empty() || key.starts_with('/'))) return false;
  if (is_nested && key.size() > PairSyntax::kNestedKeyBytesMax) return false;
  return std::ranges::all_of(
      std::initializer_list<std::string_view>{pairs.key_end, pairs.json_key_end},
      [&](std::string_view end) { return end.empty() || key.find(end.front()) == key.npos; });
}

// The function whose name would make the family's reader take its calls for something else; empty:
// there is none.
std::string taken_name(const ChatFamily& family, const ToolUse& tools) {
  const auto is_taken = [&](std::string_view name) {
    if (name == family.calls->answer_name) return true;
    const MessageSyntax* const messages = family.messages;
    return messages != nullptr &&
           (name == messages->reasoning_recipient || name == messages->answer_recipient);
  };
  for (const ToolFunction& function : tools.functions) {
    if (is_taken(function.name)) return function.name;
  }
  return "";
}

class CallGrammar {
 public:
  CallGrammar(const ChatFamily& family, const ToolUse& tools)
      : family_(family), syntax_(*family.calls), tools_(tools) {}

  // Groups of calls, as models of the family write them.
  Json calls() const {
    const int most = tools_.parallel && syntax_.parallel ? kCallsMax : 1;
    if (syntax_.messages != nullptr && !syntax_.open.empty()) return messages(most);
    const bool is_list = !syntax_.separator.empty();
    const std::string line(syntax_.line);
    const std::string separator = is_list ? std::string(syntax_.separator) : line;
    // A call without a mark is what a family writes that knows such.
    const std::string mark = syntax_.bare ? "" : std::string(syntax_.open);
    const bool parts_open = syntax_.form == CallForm::kObject || !syntax_.head.empty();
    const std::string open = mark + std::string(syntax_.list_open) + (parts_open ? line : "");
    const std::string close = (syntax_.close.empty() ? "" : line) + std::string(syntax_.close);
    Json call = any_call();
    const auto repeat = [&](Json part) -> Json {
      return {{"repeat", std::move(part)}, {"min", 1}, {"max", most}, {"separator", separator}};
    };
    if (!is_list && !syntax_.grouped) {
      return repeat(Json::array({frame(open), std::move(call), frame(close)}));
    }
    return framed(open, repeat(std::move(call)), close);
  }

  // A text of the family's, its control tokens as such.
  Json frame(std::string_view text) const {
    Json parts = Json::array();
    while (!text.empty()) {
      size_t first = text.size();
      const ControlMark* next = nullptr;
      for (const ControlMark& mark : family_.marks) {
        const size_t found = mark.ends_generation ? text.npos : text.find(mark.text);
        const bool longer = next != nullptr && mark.text.size() > next->text.size();
        if (found > first || (found == first && !longer) || found == text.npos) continue;
        first = found;
        next = &mark;
      }
      if (first > 0) parts.push_back(literal(std::string(text.substr(0, first))));
      text.remove_prefix(first);
      if (next == nullptr) continue;
      parts.push_back({{"token", next->token}});
      text.remove_prefix(next->text.size());
    }
    return parts;
  }

  // The first parameter that the family cannot write, with its function; empty: none.
  std::string unwritable() const {
    if (syntax_.form != CallForm::kPairs) return "";
    for (const ToolFunction& function : tools_.functions) {
      if (!is_wanted(function) || !function.parameters.is_object()) continue;
      for (const char* const list : {"properties", "required"}) {
        const auto names = function.parameters.find(list);
        if (names == function.parameters.end()) continue;
        for (const auto& [name, value] : names->items()) {
          const bool listed = names->is_array() && value.is_string();
          const std::string key = listed ? value.get<std::string>() : name;
          if (!is_key(key, syntax_.pairs)) return fmt::format("{}.{:.64}", function.name, key);
        }
      }
    }
    return "";
  }

 private:
  bool is_wanted(const ToolFunction& function) const {
    return tools_.named.empty() || function.name == tools_.named;
  }

  // A call of the named function, or of any.
  Json any_call() const {
    return any([&](const ToolFunction& function) {
      return syntax_.form == CallForm::kObject ? object_call(function) : marked_call(function);
    });
  }

  template <typename Make>
  Json any(const Make& make) const {
    Json ways = Json::array();
    for (const ToolFunction& function : tools_.functions) {
      if (is_wanted(function)) ways.push_back(make(function));
    }
    return {{"any_of", std::move(ways)}};
  }

  // Messages, each to the function that is called in it.
  Json messages(int most) const {
    const MessageSyntax& messages = *syntax_.messages;
    const std::string line(syntax_.line);
    const std::string open = fmt::format("{}{}{}", messages.body, syntax_.open, line);
    const Json message = any([&](const ToolFunction& function) {
      return Json::array({frame(fmt::format(" {}", messages.recipient)), literal(function.name),
                          frame(open), marked_call(function),
                          frame(line + std::string(syntax_.close))});
    });
    const std::string next = fmt::format("{}{}", messages.ends.front(), messages.next);
    Json more = {{"repeat", Json::array({frame(next), message})}, {"min", 0}, {"max", most - 1}};
    return Json::array({message, std::move(more)});
  }

  Json framed(std::string_view open, Json part, std::string_view close) const {
    if (open.empty() && close.empty()) return part;
    return Json::array({frame(open), std::move(part), frame(close)});
  }

  Json object_call(const ToolFunction& function) const {
    Json parts = Json::array();
    if (syntax_.id_key.empty()) {
      parts.push_back(literal("{"));
    } else {
      parts.push_back(literal(fmt::format(R"({{"{}": ")", syntax_.id_key)));
      parts.push_back({{"regex", "[0-9]{1,2}"}});
      parts.push_back(literal("\", "));
    }
    parts.push_back(literal(
        fmt::format(R"("{}": "{}", "{}": )", syntax_.name_key, function.name, syntax_.arguments)));
    parts.push_back({{"schema", arguments_schema(function.parameters)}});
    parts.push_back(literal("}"));
    return parts;
  }

  Json literal_part(const ToolFunction& function) const {
    Json schema = arguments_schema(function.parameters);
    switch (syntax_.values) {
      case ValueSyntax::kJson:
        return {{"schema", std::move(schema)}};
      case ValueSyntax::kPython:
        return {{"arguments", std::move(schema)}, {"values", "python"}};
      case ValueSyntax::kGemma:
        break;
    }
    return {{"arguments", std::move(schema)},
            {"values", "marked"},
            {"quote", frame(kGemmaQuote)},
            {"quote_text", kGemmaQuote}};
  }

  Json marked_call(const ToolFunction& function) const {
    const bool pairs = syntax_.form == CallForm::kPairs;
    const std::string line(syntax_.dense ? "" : syntax_.line);
    Json parts = Json::array();
    parts.push_back(frame(syntax_.head));
    if (!syntax_.id_end.empty()) {
      parts.push_back({{"regex", std::string(syntax_.id)}});
      parts.push_back(frame(syntax_.id_end));
    }
    parts.push_back(literal(std::string(syntax_.prefix) + function.name));
    if (!syntax_.number_open.empty()) {
      parts.push_back(frame(syntax_.number_open));
      parts.push_back({{"regex", std::string(syntax_.number)}});
    }
    parts.push_back(frame(std::string(syntax_.name_end) + line));
    const bool nested = !syntax_.pairs.item_key.empty();
    parts.push_back(!pairs   ? literal_part(function)
                    : nested ? nested_part(function)
                             : pairs_part(function));
    parts.push_back(frame(syntax_.call_end));
    return parts;
  }

  Json nested_part(const ToolFunction& function) const {
    const PairSyntax& pairs = syntax_.pairs;
    Json raw = Json::array();  // the paths of texts
    for (const auto& [path, kind] : find_parameter_kinds(function.parameters, pairs)) {
      if (kind.raw) raw.push_back(path);
    }
    return {{"arguments", arguments_schema(function.parameters)},
            {"values", "pairs"},
            {"open", frame(pairs.open)},
            {"key_end", std::string(pairs.key_end)},
            {"value_end", frame(pairs.value_end)},
            {"value_end_text", std::string(pairs.value_end)},
            {"item_key", std::string(pairs.item_key)},
            {"name_bytes_max", PairSyntax::kNestedKeyBytesMax},
            {"raw", std::move(raw)}};
  }

  Json pairs_part(const ToolFunction& function) const {
    const PairSyntax& pairs = syntax_.pairs;
    const std::string line(syntax_.dense ? "" : syntax_.line);
    Json raw = Json::array();
    Json typed = Json::object();  // the marks behind names that say a type
    for (const auto& [name, kind] : find_parameter_kinds(function.parameters, pairs)) {
      if (kind.raw) raw.push_back(name);
      if (!kind.raw && !pairs.type_open.empty()) {
        typed[name] =
            frame(fmt::format("{}{}{}", pairs.type_open, type_name(kind), pairs.type_end));
      }
    }
    const std::string value_open(pairs.value_open);
    Json part = {{"pairs", arguments_schema(function.parameters)}, {"raw", std::move(raw)}};
    part["open"] = frame(pairs.open);
    part["raw_key_end"] = frame(pairs.key_end);
    part["json_key_end"] = frame(pairs.json_key_end.empty() ? pairs.key_end : pairs.json_key_end);
    if (!pairs.type_open.empty()) {
      part["json_key_end"] = frame(fmt::format("{}object{}", pairs.type_open, pairs.type_end));
    }
    part["json_key_ends"] = std::move(typed);
    part["value_open"] = frame(value_open.empty() ? value_open : line + value_open);
    part["value_end"] = frame(pairs.value_end);
    part["value_end_text"] = std::string(pairs.value_end);
    part["padding"] = std::string(pairs.padding);
    part["quoted_letters"] = std::string(pairs.quoted_letters);
    part["quote_open"] = std::string(pairs.quote_open);
    part["quote_close"] = std::string(pairs.quote_close);
    part["line"] = line;
    return part;
  }

  const ChatFamily& family_;
  const CallSyntax& syntax_;
  const ToolUse& tools_;
};

// The form of the answer, as a part; null where it cannot be one.
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
    const ChatFamily& family, const ToolUse& tools, const std::optional<StructuredOutput>& answer) {
  if (const std::string name = taken_name(family, tools); !name.empty()) {
    return std::unexpected(bad_parameter(
        "tools", fmt::format("'tools': in the model's syntax of calls \"{}\" is no function's "
                             "name, but the user's or the model's own; choose another name",
                             name)));
  }
  const bool required = tools.choice == ToolUse::Choice::kRequired;
  if (!required && !answer) return std::nullopt;
  const CallGrammar grammar(family, tools);
  if (const std::string name = grammar.unwritable(); !name.empty()) {
    return std::unexpected(bad_parameter(
        "tools", fmt::format("'tools': the model's syntax of calls has no way to write the "
                             "parameter {}; choose another name",
                             name)));
  }
  Json part = grammar.calls();
  if (!required) {
    Json other = answer_part(*answer);
    if (other.is_null()) {
      return std::unexpected(bad_parameter(
          answer->parameter, fmt::format("'{}': cannot go with tools; take a schema or a pattern",
                                         answer->parameter)));
    }
    if (family.messages != nullptr) {
      other = Json::array({grammar.frame(family.messages->answer_head), std::move(other)});
    } else if (family.answer != nullptr) {
      other = Json::array({grammar.frame(family.answer->open), std::move(other)});
    }
    part = {{"any_of", Json::array({std::move(other), std::move(part)})}};
  }
  StructuredOutput constraint;
  constraint.source.kind = Kind::kTemplate;
  constraint.source.text = to_text(part);
  constraint.parameter = "tools";
  return constraint;
}

}  // namespace lockstep
