// Turns as models of each family of today write them: whole, and cut at every byte; and what the
// constraint of a turn lets through, read again.
#include <gtest/gtest.h>

#include <random>

#include "engine/base/json.h"
#include "server/api/common/reasoning_count.h"
#include "server/api/common/schema_types.h"
#include "server/api/common/turn_parser.h"
#include "server/api/common/turn_syntax.h"
#include "tests/server/api/common/call_cases.h"

namespace lockstep {
namespace {

using Kind = TurnEvent::Kind;

const CallSyntax& syntax(std::string_view name) {
  for (const CallSyntax& row : call_syntaxes()) {
    if (row.name == name) return row;
  }
  ADD_FAILURE() << "no syntax " << name;
  return call_syntaxes().front();
}

Json schema_of_row() {
  return {{"type", "object"},
          {"properties", {{"name", {{"type", "string"}}}, {"size", {{"type", "integer"}}}}}};
}

// The function "all" has a parameter of every type; "now" has none that is known.
const Json& schema_of_all() {
  static const Json kSchema = {{"type", "object"},
                               {"properties",
                                {{"text", {{"type", "string"}}},
                                 {"unit", {{"type", "string"}, {"enum", {"C", "F"}}}},
                                 {"code", {{"type", "string"}, {"pattern", "^[0-9]{3}$"}}},
                                 {"count", {{"type", "integer"}}},
                                 {"share", {{"type", "number"}}},
                                 {"is_on", {{"type", "boolean"}}},
                                 {"none", {{"type", "null"}}},
                                 {"list", {{"type", "array"}}},
                                 {"rows", {{"type", "array"}, {"items", schema_of_row()}}},
                                 {"map", {{"type", "object"}}},
                                 {"maybe", {{"anyOf", {{{"type", "string"}}, {{"type", "null"}}}}}},
                                 {"any", Json::object()}}}};
  return kSchema;
}

TurnRules rules_of(const CallSyntax& row) {
  auto kinds = std::make_shared<FunctionKinds>();
  kinds->emplace("all", find_parameter_kinds(schema_of_all(), row.pairs));
  return {.calls = &row,
          .functions = {"all", "now"},
          .messages = row.messages,
          .parameters = std::move(kinds)};
}

using Case = CallCase;

const std::vector<Case>& harmony_cases() {
  static const std::vector<Case> kCases = {
      {"harmony", "<|channel|>final<|message|>Four.", "Four."},
      {"harmony", "<|channel|>final<|message|>Four.<|return|>", "Four."},
      {"harmony",
       "<|channel|>analysis<|message|>Two and two.<|end|><|start|>assistant<|channel|>final"
       "<|message|> It is 4 < 5. ",
       " It is 4 < 5. ",
       {},
       "Two and two."},
      {"harmony",
       "<|channel|>analysis<|message|>I call.<|end|><|start|>assistant<|channel|>commentary "
       "to=functions.all <|constrain|>json<|message|>{\"text\": \"<|end|>\", \"list\": [1, {}]}"
       "<|call|>",
       "",
       {"all({\"text\": \"<|end|>\", \"list\": [1, {}]})"},
       "I call."},
      // The recipient may stand before the channel, and the content's type without its mark.
      {"harmony", " to=functions.now<|channel|>commentary json<|message|>{}", "", {"now({})"}},
      {"harmony", "<|start|>assistant to=now<|channel|>commentary<|message|> {} ", "", {"now({})"}},
      // A preamble is said to the user.
      {"harmony",
       "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>"
       "I look it up.<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|><|start|>"
       "assistant<|channel|>commentary to=functions.now json<|message|>{\"a\": 1}<|call|>",
       "I look it up.",
       {"now({\"a\": 1})"},
       "a\n\nb"},
      {"harmony",
       "<|channel|>commentary<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>"
       "Two.",
       "One.\n\nTwo."},
      {"harmony",
       "<|channel|>commentary to=functions.now<|message|>{}<|call|><|start|>assistant<|channel|>"
       "commentary to=functions.all<|message|>{\"count\": 2}<|call|>",
       "",
       {"now({})", "all({\"count\": 2})"}},
      // Text that is no call stays text.
      {"harmony", "<|channel|>commentary to=functions.other json<|message|>{}<|call|>",
       "<|channel|>commentary to=functions.other json<|message|>{}"},
      {"harmony", "Just text, to=functions.now {}", "Just text, to=functions.now {}"},
      {"harmony", "to=be or not", "to=be or not"},
      {"harmony", " <", " <"},
      {"harmony", "", ""},
      // A head that has no end yet is none of the answer.
      {"harmony", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assist", "", {}, "Hm."},
      {"harmony", "<|channel|>fin", ""},
  };
  return kCases;
}

const std::vector<Case>& pair_cases() {
  static const std::vector<Case> kCases = {
      {"glm",
       "I look.\n<tool_call>all\n<arg_key>text</arg_key>\n<arg_value>12</arg_value>\n"
       "<arg_key>count</arg_key>\n<arg_value>12</arg_value>\n<arg_key>list</arg_key>\n"
       "<arg_value>[1, \"</x>\"]</arg_value>\n<arg_key>maybe</arg_key>\n<arg_value>7</arg_value>\n"
       "</tool_call>\n<tool_call>now\n</tool_call>",
       "I look.",
       {"all({\"text\": \"12\", \"count\": 12, \"list\": [1, \"</x>\"], \"maybe\": \"7\"})",
        "now({})"}},
      {"glm-line",
       "<tool_call>now<arg_key>q\"</arg_key><arg_value>a \"b\"\n\\</arg_value><arg_key>n</arg_key>"
       "<arg_value>-1.5</arg_value></tool_call>",
       "",
       {"now({\"q\\\"\": \"a \\\"b\\\"\\n\\\\\", \"n\": -1.5})"}},
      {"glm", "<tool_call>other\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
       "<tool_call>other\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"},
      {"glm", "<tool_call>now I know</tool_call>", "<tool_call>now I know</tool_call>"},
      {"glm", "<tool_call>now <tool_call>now</tool_call>", "<tool_call>now", {"now({})"}},
      {"glm", "<tool_call>now\n<arg_key>a</ar", "<tool_call>now\n<arg_key>a</ar"},
      {"glm", "a <tool_call", "a <tool_call"},
      {"qwen-xml",
       "<tool_call>\n<function=all>\n<parameter=text>\n\n two\nlines \n\n</parameter>\n"
       "<parameter=is_on>\nTrue\n</parameter>\n<parameter=none>\nNone\n</parameter>\n"
       "<parameter=map>\n{\"a\": [true, null]}\n</parameter>\n<parameter=unit>\nC\n</parameter>\n"
       "<parameter=code>\n\"123\"\n</parameter>\n<parameter=any>\nfree text\n</parameter>\n"
       "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
       "",
       {"all({\"text\": \"\\n two\\nlines \\n\", \"is_on\": true, \"none\": null, \"map\": "
        "{\"a\": [true, null]}, \"unit\": \"C\", \"code\": \"123\", \"any\": \"free text\"})",
        "now({})"}},
      {"qwen-xml",
       "<tool_call><function=all><parameter=text>x</parameter><parameter=code>123</parameter>"
       "<parameter=share>1</parameter></function></tool_call>",
       "",
       {"all({\"text\": \"x\", \"code\": \"123\", \"share\": 1})"}},
      {"qwen-xml",
       "<tool_call>\n<function=all>\n<parameter=text>\n\n</parameter>\n</function>\n</tool_call>",
       "",
       {"all({\"text\": \"\"})"}},
      {"qwen-xml", "<tool_call>\n{\"name\": \"now\"}\n</tool_call>",
       "<tool_call>\n{\"name\": \"now\"}\n</tool_call>"},
      {"seed",
       "<seed:tool_call>\n<function=all>\n<parameter=text>\nx</parameter>\n</function>\n"
       "</seed:tool_call>",
       "",
       {"all({\"text\": \"\\nx\"})"}},
      {"minimax",
       "\n<minimax:tool_call>\n<invoke name=\"all\">\n<parameter name=\"text\">a<b></parameter>\n"
       "<parameter name=\"list\">[\"x\"]</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n"
       "</minimax:tool_call>",
       "",
       {"all({\"text\": \"a<b>\", \"list\": [\"x\"]})", "now({})"}},
      {"deepseek-pairs",
       "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"now\">\n<｜DSML｜parameter name=\"a\" "
       "string=\"true\">5</｜DSML｜parameter>\n<｜DSML｜parameter name=\"b\" string=\"false\">5"
       "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
       "",
       {"now({\"a\": \"5\", \"b\": 5})"}},
  };
  return kCases;
}

const std::vector<Case>& json_cases() {
  static const std::vector<Case> kCases = {
      {"kimi",
       "Let me see.<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0"
       "<|tool_call_argument_begin|>{\"a\": \"<|tool_call_end|>\"}<|tool_call_end|>"
       "<|tool_call_begin|>all:1<|tool_call_argument_begin|>{\"count\": 1}<|tool_call_end|>"
       "<|tool_calls_section_end|>",
       "Let me see.",
       {"now({\"a\": \"<|tool_call_end|>\"})", "all({\"count\": 1})"}},
      {"kimi", "<|tool_calls_section_begin|><|tool_call_begin|>what<|tool_calls_section_end|>",
       "<|tool_calls_section_begin|><|tool_call_begin|>what<|tool_calls_section_end|>"},
      {"mistral-names",
       "[TOOL_CALLS]now[ARGS]{\"a\": \"[ARGS]\"}[TOOL_CALLS]all[ARGS]{\"count\": 3}",
       "",
       {"now({\"a\": \"[ARGS]\"})", "all({\"count\": 3})"}},
      {"mistral-names", "[TOOL_CALLS]now[ARGS] none", "[TOOL_CALLS]now[ARGS] none"},
      {"mistral-names", "See [TOOL_CALLS] and [ARGS].", "See [TOOL_CALLS] and [ARGS]."},
      {"mistral-ids", "[TOOL_CALLS]now[CALL_ID]abc123XYZ[ARGS]{\"a\": 1}", "", {"now({\"a\": 1})"}},
      {"deepseek",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
       "<｜tool▁call▁begin｜>all<｜tool▁sep｜>{\"text\": \"é\"}<｜tool▁call▁end｜>"
       "<｜tool▁calls▁end｜>",
       "",
       {"now({})", "all({\"text\": \"é\"})"}},
      {"deepseek-fences",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{\"a\": 1}\n"
       "```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```"
       "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "",
       {"now({\"a\": 1})", "now({})"}},
      {"functionary",
       "Yes: <function=now>{\"a\": 1}</function><function=all>{}</function>",
       "Yes:",
       {"now({\"a\": 1})", "all({})"}},
      {"functionary", "<function=other>{}</function>", "<function=other>{}</function>"},
      {"apriel",
       "<tool_calls>[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"now\", \"arguments\": "
       "{\"a\": []}}]</tool_calls>",
       "",
       {"now({})", "now({\"a\": []})"}},
      {"nemotron",
       "<TOOLCALL>[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"all\", \"arguments\": "
       "{\"count\": 1}}]</TOOLCALL>",
       "",
       {"now({})", "all({\"count\": 1})"}},
  };
  return kCases;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto* some : {&harmony_cases(), &pair_cases(), &json_cases()}) {
    all.insert(all.end(), some->begin(), some->end());
  }
  for (const auto& some : {literal_call_cases(), recent_call_cases(), faulty_call_cases()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

// The events of a stream, those of a kind joined.
std::vector<std::string> stream(const TurnRules& rules,
                                const std::vector<std::string_view>& pieces) {
  TurnParser parser(rules);
  std::vector<std::string> told;
  std::optional<Kind> last;
  const auto take = [&](const std::vector<TurnEvent>& events) {
    for (const TurnEvent& event : events) {
      const bool goes_on = last == event.kind && event.kind != Kind::kCall;
      if (!goes_on) told.push_back(fmt::format("{}:", static_cast<int>(event.kind)));
      told.back() += event.text;
      if (!event.sound) told.back() += "(broken)";
      last = event.kind;
    }
  };
  for (const std::string_view piece : pieces) take(parser.push(piece));
  take(parser.finish());
  return told;
}

TEST(CallSyntaxes, a_whole_turn_falls_into_its_parts) {
  for (const Case& which : cases()) {
    const Turn turn = read_turn(rules_of(syntax(which.family)), which.text);
    EXPECT_EQ(turn.text, which.said) << which.text;
    EXPECT_EQ(turn.reasoning, which.reasoning) << which.text;
    std::vector<std::string> calls;
    for (const TurnCall& call : turn.calls) {
      calls.push_back(call.name + "(" + call.arguments + ")");
      EXPECT_TRUE(parse_json(call.arguments)) << call.arguments;
    }
    EXPECT_EQ(calls, which.calls) << which.text;
  }
}

TEST(CallSyntaxes, wherever_the_text_is_cut_the_events_say_the_same) {
  for (const Case& which : cases()) {
    const TurnRules rules = rules_of(syntax(which.family));
    const auto whole = stream(rules, {which.text});
    std::vector<std::string_view> bytes;
    for (size_t at = 0; at < which.text.size(); ++at) bytes.push_back(which.text.substr(at, 1));
    EXPECT_EQ(stream(rules, bytes), whole) << which.text;
    for (size_t at = 0; at <= which.text.size(); ++at) {
      EXPECT_EQ(stream(rules, {which.text.substr(0, at), which.text.substr(at)}), whole)
          << at << ": " << which.text;
    }
  }
}

// The marks of a family, and pieces of calls.
std::vector<std::string> pieces_of(const CallSyntax& row) {
  std::vector<std::string> pieces = {
      " ",      "\n", "x", "now", "all", "{}", "{\"a\": 1}", "\"", "1",   "text", "code", "list",
      "[1, \"", "<",  "é", "a=1", "a='", "'",  "(",          ")",  "a:1", "a:",   "{",    "}"};
  if (row.values == ValueSyntax::kGemma) pieces.emplace_back(kGemmaQuote);
  for (const std::string_view mark : {row.open,
                                      row.list_open,
                                      row.separator,
                                      row.close,
                                      row.head,
                                      row.prefix,
                                      row.number_open,
                                      row.name_end,
                                      row.call_end,
                                      row.pairs.open,
                                      row.pairs.key_end,
                                      row.pairs.json_key_end,
                                      row.pairs.type_open,
                                      row.pairs.value_open,
                                      row.pairs.value_end,
                                      row.pairs.padding,
                                      row.pairs.quote_open,
                                      row.pairs.quote_close,
                                      row.pairs.item_key,
                                      row.id_end}) {
    if (!mark.empty()) pieces.emplace_back(mark);
  }
  if (row.messages != nullptr) {
    for (const std::string_view mark : {row.messages->start, row.messages->channel,
                                        row.messages->recipient, row.messages->body}) {
      pieces.emplace_back(mark);
    }
    pieces.insert(pieces.end(), row.messages->ends.begin(), row.messages->ends.end());
    pieces.insert(pieces.end(), {"analysis", "final", "assistant"});
  }
  return pieces;
}

TEST(CallSyntaxes, marks_in_any_order_are_told_alike_at_once_and_in_pieces) {
  const uint32_t seed = 20260705;
  std::mt19937 random(seed);
  for (const CallSyntax& row : call_syntaxes()) {
    const TurnRules rules = rules_of(row);
    const std::vector<std::string> pieces = pieces_of(row);
    for (int round = 0; round < 2'000; ++round) {
      std::string text;
      for (size_t count = random() % 16; count > 0; --count) {
        text += pieces[random() % pieces.size()];
      }
      const std::string_view view = text;
      const auto whole = stream(rules, {view});
      std::vector<std::string_view> bytes;
      for (size_t at = 0; at < view.size(); ++at) bytes.push_back(view.substr(at, 1));
      const size_t cut = random() % (view.size() + 1);
      ASSERT_EQ(stream(rules, bytes), whole) << row.name << ", seed " << seed << ": " << text;
      ASSERT_EQ(stream(rules, {view.substr(0, cut), view.substr(cut)}), whole)
          << row.name << ", seed " << seed << ": " << text;
      const Turn turn = read_turn(rules, text);
      for (const TurnCall& call : turn.calls) ASSERT_TRUE(parse_json(call.arguments)) << text;
      if (turn.calls.empty() && row.messages == nullptr) {
        ASSERT_EQ(turn.text, text) << row.name << ", seed " << seed;
      }
    }
  }
}

TEST(CallSyntaxes, one_call_at_a_time_drops_what_follows_it) {
  for (const Case& which : cases()) {
    TurnRules rules = rules_of(syntax(which.family));
    rules.parallel = false;
    EXPECT_LE(read_turn(rules, which.text).calls.size(), 1U) << which.text;
  }
}

TEST(CallSyntaxes, every_beginning_of_a_turn_is_read_without_a_call_that_is_not_whole) {
  for (const Case& which : cases()) {
    for (size_t size = 0; size < which.text.size(); ++size) {
      const Turn turn = read_turn(rules_of(syntax(which.family)), which.text.substr(0, size));
      for (const TurnCall& call : turn.calls) {
        EXPECT_TRUE(parse_json(call.arguments)) << size << ": " << which.text;
      }
    }
  }
}

TEST(CallSyntaxes, texts_are_told_before_they_are_complete) {
  TurnParser parser(rules_of(syntax("qwen-xml")));
  parser.push("<tool_call>\n<function=all>\n<parameter=text>\nab");
  const auto more = parser.push("cd\n");
  ASSERT_EQ(more.size(), 1U);
  EXPECT_EQ(more[0].text, "cd");  // the line's end may be the mark's
  const auto rest = parser.push("e</para");
  ASSERT_EQ(rest.size(), 1U);
  EXPECT_EQ(rest[0].text, "\\ne");
}

// A call that is longer than any may be, and ends in a section that does not.
TEST(CallSyntaxes, a_section_without_an_end_hides_no_call_behind_a_mebibyte_of_it) {
  const std::string open = "<function name=\"all\"><param name=\"text\">";
  for (const char* const before : {"", "a "}) {
    const std::string broken = open + before + "<![CDATA[b</param></function>";
    std::string text = broken + "<function name=\"now\"></function>";
    const std::string behind(CallReader::kBytesMax, 'x');
    const Turn turn = read_turn(rules_of(syntax("minicpm-5")), text + behind);
    ASSERT_EQ(turn.calls.size(), 1U);
    EXPECT_EQ(turn.calls.front().name, "now");
    EXPECT_EQ(turn.text, broken + behind);
  }
}

// Text that is read again may hold such calls again: only so often.
TEST(CallSyntaxes, a_turn_is_not_read_again_for_each_of_its_sections_without_an_end) {
  const auto turn_of = [](size_t times) {
    std::string text;
    for (size_t index = 0; index < times; ++index) {
      text += "<function name=\"all\"><param name=\"text\"><![CDATA[b</param></function>";
    }
    return read_turn(rules_of(syntax("minicpm-5")), text + "<function name=\"now\"></function>");
  };
  EXPECT_EQ(turn_of(TurnParser::kRereadingsMax).calls.size(), 1U);
  EXPECT_EQ(turn_of(TurnParser::kRereadingsMax + 1).calls.size(), 0U);
  EXPECT_TRUE(turn_of(TurnParser::kRereadingsMax + 1).text.ends_with("\"now\"></function>"));
}

// Looking at all of the white space at each piece would be 10^11 steps.
TEST(CallSyntaxes, white_space_behind_a_section_is_looked_at_once) {
  TurnParser parser(rules_of(syntax("minicpm-5")));
  std::string arguments;
  const auto push = [&](std::string_view text) {
    for (const TurnEvent& event : parser.push(text)) {
      if (event.kind == Kind::kArguments) arguments += event.text;
    }
  };
  push("<function name=\"all\"><param name=\"text\"><![CDATA[a]]>");
  for (size_t count = CallReader::kBytesMax - 200; count > 0; --count) push(" ");
  push("</param></function>");
  EXPECT_EQ(arguments, "{\"text\": \"a\"}");
}

TEST(CallSyntaxes, an_answer_that_began_in_the_prompt_goes_on) {
  TurnRules rules = rules_of(syntax("harmony"));
  rules.starts_in_answer = true;
  const Turn turn = read_turn(rules, " and <|channel|> more.<|return|>");
  EXPECT_EQ(turn.text, " and <|channel|> more.");
  EXPECT_EQ(turn.reasoning, "");
}

TEST(CallSyntaxes, messages_are_told_apart_without_tools) {
  TurnRules rules = {.functions = {}, .messages = syntax("harmony").messages};
  const Turn turn = read_turn(
      rules,
      "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>!");
  EXPECT_EQ(turn.reasoning, "Hm.");
  EXPECT_EQ(turn.text, "!");
}

// 2^20 ways lead to one value, and a long name stands before 64 others, or 64 items.
TEST(CallSyntaxes, nothing_is_known_of_a_schema_that_references_make_too_much_of) {
  Json branching = {{"type", "object"}, {"properties", {{"a", {{"$ref", "#/$defs/d0"}}}}}};
  for (int at = 0; at < 20; ++at) {
    const Json next = {{"$ref", "#/$defs/d" + std::to_string(at + 1)}};
    branching["$defs"]["d" + std::to_string(at)] = {{"anyOf", {next, next}}};
  }
  branching["$defs"]["d20"] = {{"type", "object"}, {"properties", {{"x", {{"type", "string"}}}}}};
  Json wide = Json::object();
  for (int at = 0; at < 64; ++at) wide["properties"]["a" + std::to_string(at)] = Json::object();
  const Json long_names = {{"properties", {{std::string(4000, '='), wide}}}};
  Json items = {{"properties", {{std::string(4000, '='), {{"prefixItems", Json::array()}}}}}};
  for (int at = 0; at < 64; ++at) {
    items["properties"].begin()->at("prefixItems").push_back({{"type", "string"}});
  }
  const PairSyntax& pairs = syntax("minimax-m3").pairs;
  EXPECT_TRUE(find_parameter_kinds(items, pairs).empty());
  EXPECT_TRUE(find_parameter_kinds(branching, pairs).empty());
  EXPECT_TRUE(find_parameter_kinds(long_names, pairs).empty());
  EXPECT_FALSE(find_parameter_kinds(schema_of_all(), pairs).empty());
}

// 1,000 references lead to one schema of 1,000 ways, whose types are read once.
TEST(CallSyntaxes, a_schema_is_read_once_however_many_references_lead_to_it) {
  Json root = {{"properties", {{"a", {{"allOf", Json::array()}}}}},
               {"$defs", {{"b", {{"anyOf", Json::array()}}}}}};
  for (int at = 0; at < 1000; ++at) {
    root["properties"]["a"]["allOf"].push_back({{"$ref", "#/$defs/b"}});
    root["$defs"]["b"]["anyOf"].push_back({{"type", at % 2 == 0 ? "array" : "null"}});
  }
  SchemaTypes types(root);
  EXPECT_EQ(types.with_references(root["properties"]["a"]), type_bits("array") | type_bits("null"));
  EXPECT_LT(types.visits(), 5000U);
}

// An object that is all of the text of "a", as MiniMax M3 writes it.
std::string read_of(const Json& schema, const std::string& text) {
  const CallSyntax& row = syntax("minimax-m3");
  const Json parameters = {
      {"properties", {{"a", schema}}},
      {"$defs",
       {{"list", {{"type", "array"}}},
        {"row", {{"type", "object"}, {"properties", {{"b", {{"$ref", "#/$defs/list"}}}}}}}}}};
  auto kinds = std::make_shared<FunctionKinds>();
  kinds->emplace("now", find_parameter_kinds(parameters, row.pairs));
  const std::string mark = "]<]minimax[>[";
  const Turn turn = read_turn(
      {.calls = &row, .functions = {"now"}, .parameters = std::move(kinds)},
      fmt::format(
          "{0}<tool_call>{0}<invoke name=\"now\">{0}<a>{1}{0}</a>{0}</invoke>{0}</tool_call>", mark,
          text));
  return turn.calls.empty() ? turn.text : turn.calls.front().arguments;
}

TEST(CallSyntaxes, schemas_that_must_all_hold_tell_an_empty_list_from_an_empty_text) {
  const Json list = {{"$ref", "#/$defs/list"}};
  const Json row = {{"$ref", "#/$defs/row"}};
  const std::string inner = "]<]minimax[>[<b>]<]minimax[>[</b>";
  EXPECT_EQ(read_of(list, ""), "{\"a\": []}");
  EXPECT_EQ(read_of({{"allOf", {{{"type", "array"}}}}}, ""), "{\"a\": []}");
  EXPECT_EQ(read_of({{"allOf", {list}}, {"default", Json::array()}}, ""), "{\"a\": []}");
  EXPECT_EQ(read_of({{"allOf", {list, {{"maxItems", 3}}}}}, ""), "{\"a\": []}");
  EXPECT_EQ(read_of({{"allOf", {list}}, {"maxItems", 3}}, ""), "{\"a\": []}");
  EXPECT_EQ(read_of({{"allOf", {{{"type", "object"}}}}}, ""), "{\"a\": {}}");
  EXPECT_EQ(read_of({{"allOf", {{{"type", "string"}}}}}, ""), "{\"a\": \"\"}");
  EXPECT_EQ(read_of({{"allOf", {row}}}, inner), "{\"a\": {\"b\": []}}");
  EXPECT_EQ(read_of({{"allOf", {row, {{"required", {"b"}}}}}}, inner), "{\"a\": {\"b\": []}}");
  EXPECT_EQ(read_of(Json::object(), ""), "{\"a\": \"\"}");
}

TEST(CallSyntaxes, an_answer_behind_a_call_begins_behind_the_mark_of_answers) {
  const CallSyntax& row = syntax("functionary-recipients");
  TurnRules rules = {.calls = &row, .functions = {"now"}};
  for (const AnswerMarks& marks : answer_marks()) {
    if (marks.lead == row.open) rules.answer = &marks;
  }
  ASSERT_TRUE(rules.answer);
  const Turn turn = read_turn(rules, "now\n{}>>>all\nIt is >>> noon.");
  EXPECT_EQ(turn.calls.size(), 1U);
  EXPECT_EQ(turn.text, "It is >>> noon.");
  const std::string text = "now\n{}>>>all\nNoon.";
  const auto whole = stream(rules, {text});
  for (size_t at = 0; at <= text.size(); ++at) {
    EXPECT_EQ(
        stream(rules, {std::string_view(text).substr(0, at), std::string_view(text).substr(at)}),
        whole)
        << at;
  }
}

TEST(CallSyntaxes, the_mark_of_an_answer_is_whole_and_parts_no_texts) {
  const CallSyntax& row = syntax("functionary-recipients");
  TurnRules rules = {.calls = &row, .functions = {"now"}};
  for (const AnswerMarks& marks : answer_marks()) {
    if (marks.lead == row.open) rules.answer = &marks;
  }
  ASSERT_TRUE(rules.answer);
  // White space within the mark makes it none.
  const std::string shell = "Try:\n>>> all\n<built-in function all>\n>>>\nall\n!";
  EXPECT_EQ(read_turn(rules, shell).text, shell);
  EXPECT_EQ(read_turn(rules, "Yes.\n\n>>>all\nNo.").text, "Yes.\n\nNo.");
  EXPECT_EQ(read_turn(rules, "now\n{}\n>>>all\nNo.").text, "No.");
  EXPECT_EQ(read_turn(rules, "Yes.\n>>>now\n{}\n>>>all\nNo.").text, "Yes.\nNo.");
  for (const std::string& text : {shell, std::string("Yes.\n\n>>>all\nNo.")}) {
    const auto whole = stream(rules, {text});
    for (size_t at = 0; at <= text.size(); ++at) {
      const std::string_view view = text;
      EXPECT_EQ(stream(rules, {view.substr(0, at), view.substr(at)}), whole) << at;
    }
  }
}

TEST(CallSyntaxes, the_reasoning_of_messages_is_counted_without_their_heads) {
  const TurnRules rules = {.functions = {}, .messages = syntax("harmony").messages};
  ReasoningCount count(rules);
  Output output;
  for (const char* piece : {"<|channel|>", "analysis", "<|message|>", "a", "b", "<|end|>",
                            "<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "c"}) {
    output.tokens.push_back(OutputToken{.token = 1, .bytes = piece, .logprob = 0, .top = {}});
  }
  count.add(output);
  EXPECT_EQ(count.tokens(), 5U);  // up to the end of what it says
}

}  // namespace
}  // namespace lockstep
