// Every text that the constraint of a turn allows is read as calls that keep to their schemas:
// random walks over the tokens that it allows, for every family.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/text/grammar/compiled_grammar.h"
#include "engine/text/grammar/grammar_matcher.h"
#include "engine/text/grammar/token_trie.h"
#include "engine/text/model_tokenizer.h"
#include "server/api/common/tool_use.h"
#include "server/api/common/turn_parser.h"
#include "tests/engine/text/small_vocabularies.h"
#include "tests/tried_cases.h"

namespace lockstep {
namespace {

constexpr uint64_t kSeed = 20260704;
constexpr int kStepsMax = 4000;

std::vector<std::string_view> marks_of(const CallSyntax& row) {
  std::vector<std::string_view> marks = {row.open,           row.close,      row.call_end,
                                         row.id_end,         row.pairs.open, row.pairs.value_open,
                                         row.pairs.value_end};
  if (row.messages != nullptr) {
    marks.insert(marks.end(), {row.messages->start, row.messages->channel, row.messages->body,
                               row.messages->ends.front(), "<|constrain|>"});
  }
  if (row.values == ValueSyntax::kGemma) marks.push_back(kGemmaQuote);
  std::erase(marks, "");
  return marks;
}

// A vocabulary of bytes and of the family's marks, which are control tokens or text.
struct Vocabulary {
  std::unique_ptr<Tokenizer> tokenizer;
  std::shared_ptr<const TokenTrie> trie;
  ChatFamily family;
};

Vocabulary make_vocabulary(const CallSyntax& row, bool controls) {
  TokenizerData data = small_byte_pair();
  Vocabulary made;
  made.family.calls = &row;
  made.family.messages = row.messages;
  for (const std::string_view mark : marks_of(row)) {
    std::string text;
    for (const char byte : mark) text += byte_level_character(static_cast<unsigned char>(byte));
    const TokenId token = add_token(data, controls ? std::string(mark) : text,
                                    controls ? TokenType::kControl : TokenType::kNormal);
    if (controls) made.family.marks.push_back({std::string(mark), token, false});
  }
  auto tokenizer = make_tokenizer(std::move(data));
  EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  made.tokenizer = std::move(*tokenizer);
  made.trie = std::make_shared<const TokenTrie>(*made.tokenizer, made.tokenizer->vocabulary_size());
  return made;
}

// A text that the grammar lets through; nothing if the walk did not end in time.
std::optional<std::string> walk(const Vocabulary& vocabulary,
                                const std::shared_ptr<const Grammar>& grammar,
                                std::mt19937_64& random) {
  GrammarMatcher matcher(grammar);
  const size_t count = vocabulary.tokenizer->vocabulary_size();
  std::string text;
  for (int step = 0; step < kStepsMax; ++step) {
    if (matcher.must_end() || (matcher.can_end() && random() % 2 == 0)) return text;
    const auto mask = matcher.allowed();
    if (!mask) ADD_FAILURE() << mask.error().message;
    if (!mask) return std::nullopt;
    std::vector<TokenId> allowed;
    std::vector<TokenId> closing;
    for (size_t index = 0; index < count; ++index) {
      const auto token = static_cast<TokenId>(index);
      if (!(*mask)->allows(token)) continue;
      allowed.push_back(token);
      const std::string_view piece = vocabulary.tokenizer->piece(token, true);
      const bool closes = piece.find_first_of("\"]})") != piece.npos || piece.size() > 3;
      if (closes) closing.push_back(token);
    }
    EXPECT_FALSE(allowed.empty()) << "after " << text;
    if (allowed.empty()) return std::nullopt;
    const auto& choice = !closing.empty() && random() % 3 == 0 ? closing : allowed;
    const TokenId token = choice[random() % choice.size()];
    if (!matcher.accept(token)) return std::nullopt;
    text += vocabulary.tokenizer->piece(token, true);
  }
  return std::nullopt;
}

const Json& schema() {
  static const Json kSchema = parse_json(R"({"type": "object", "properties": {
      "text": {"type": "string"},
      "unit": {"type": "string", "enum": ["C", "</arg_valu", "\n"]},
      "hostile": {"enum": ["</parameter>", "</arg_value>", "</｜DSML｜parameter>", "12"]},
      "code": {"type": "string", "pattern": "^[0-9<]{2,3}$"},
      "count": {"type": "integer"},
      "is_on": {"type": "boolean"},
      "none": {"type": "null"},
      "list": {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 2},
      "map": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
              "additionalProperties": false},
      "maybe": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
      "named": {"type": "object", "additionalProperties": {"$ref": "#/$defs/shade"}},
      "shade": {"$ref": "#/$defs/shade"},
      "joined": {"allOf": [{"$ref": "#/$defs/row"}], "description": "a row"},
      "both": {"allOf": [{"$ref": "#/$defs/row"}, {"required": ["next"]}]},
      "pair": {"type": "array", "prefixItems": [{"type": "integer"}],
               "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
      "rows": {"type": "array", "items": {"$ref": "#/$defs/row"}, "maxItems": 2}},
    "$defs": {"item": {"type": "integer"},
              "shade": {"type": "string", "enum": ["red", "blue"]},
              "row": {"type": "object", "properties": {
                  "item": {"type": "string"}, "size": {"type": "integer"},
                  "next": {"anyOf": [{"$ref": "#/$defs/row"}, {"type": "null"}]},
                  "free": {"type": "object"}},
                "required": ["item", "size"], "additionalProperties": false}},
    "required": ["unit", "hostile", "count", "code"], "additionalProperties": false})")
                                  .value();
  return kSchema;
}

bool is_row(const Json& value) {
  if (!value.is_object()) return false;
  for (const auto& [name, part] : value.items()) {
    const bool holds = name == "item"   ? part.is_string()
                       : name == "size" ? part.is_number_integer()
                       : name == "free" ? part.is_object()
                                        : name == "next" && (part.is_null() || is_row(part));
    if (!holds) return false;
  }
  return value.contains("item") && value.contains("size");
}

void expect_valid(const Json& arguments, const std::string& text) {
  const auto is = [&](const char* name, auto holds) {
    const auto found = arguments.find(name);
    if (found != arguments.end()) {
      EXPECT_TRUE(holds(*found)) << name << " in " << text;
    }
  };
  for (const char* name : {"unit", "hostile", "count", "code"}) {
    EXPECT_TRUE(arguments.contains(name)) << name << " in " << text;
  }
  for (const auto& [name, value] : arguments.items()) {
    EXPECT_TRUE(schema().at("properties").contains(name)) << name << " in " << text;
  }
  is("text", [](const Json& value) { return value.is_string(); });
  for (const char* name : {"unit", "hostile"}) {
    is(name, [&](const Json& value) {
      const Json& all = schema().at("properties").at(name).at("enum");
      return std::find(all.begin(), all.end(), value) != all.end();
    });
  }
  is("code", [](const Json& value) {
    return value.is_string() &&
           value.get<std::string>().find_first_not_of("0123456789<") == std::string::npos;
  });
  is("count", [](const Json& value) { return value.is_number_integer(); });
  is("is_on", [](const Json& value) { return value.is_boolean(); });
  is("none", [](const Json& value) { return value.is_null(); });
  is("list", [](const Json& value) { return value.is_array() && value.size() <= 2; });
  is("map", [](const Json& value) { return value.is_object() && value.size() == 1; });
  is("rows", [](const Json& value) {
    return value.is_array() && value.size() <= 2 && std::ranges::all_of(value, is_row);
  });
  is("joined", is_row);
  is("both", [](const Json& value) { return is_row(value) && value.contains("next"); });
  is("maybe", [](const Json& value) { return value.is_string() || value.is_null(); });
  is("shade", [](const Json& value) { return value == "red" || value == "blue"; });
  is("pair", [](const Json& value) {
    return value.is_array() && !value.empty() && value[0].is_number_integer() &&
           (value.size() < 2 || value[1].is_string());
  });
}

ToolUse required_tools() {
  ToolUse tools;
  // Without a schema an object may have any members, also one twice.
  tools.functions = {{"get_weather", "", schema()}, {"now", "", nullptr}};
  tools.choice = ToolUse::Choice::kRequired;
  return tools;
}

TurnRules rules_of(const CallSyntax& row, const ToolUse& tools) {
  auto kinds = std::make_shared<FunctionKinds>();
  for (const ToolFunction& function : tools.functions) {
    kinds->emplace(function.name, find_parameter_kinds(function.parameters, row.pairs));
  }
  return {.calls = &row,
          .functions = tools.names(),
          .messages = row.messages,
          .parameters = std::move(kinds)};
}

TEST(CallGrammar, what_is_let_through_is_read_as_calls_that_keep_to_their_schemas) {
  const ToolUse tools = required_tools();
  for (const CallSyntax& row : call_syntaxes()) {
    for (const bool controls : {false, true}) {
      std::mt19937_64 random(kSeed);
      const Vocabulary vocabulary = make_vocabulary(row, controls);
      const auto constraint = constrain_turn(vocabulary.family, tools, std::nullopt);
      ASSERT_TRUE(constraint.has_value()) << row.name;
      const auto grammar = compile_grammar((*constraint)->source, vocabulary.trie);
      ASSERT_TRUE(grammar.has_value()) << row.name << ": " << grammar.error().message;
      size_t ended = 0;
      for (size_t round = 0; round < tried_cases(60); ++round) {
        const auto text = walk(vocabulary, *grammar, random);
        if (!text) continue;
        ++ended;
        const Turn turn = read_turn(rules_of(row, tools), *text);
        EXPECT_FALSE(turn.calls.empty()) << row.name << ": " << *text;
        EXPECT_EQ(turn.text, "") << row.name << ": " << *text;
        for (const TurnCall& call : turn.calls) {
          const auto arguments = parse_json(call.arguments);
          ASSERT_TRUE(arguments.has_value()) << *text;
          if (call.name == "get_weather") expect_valid(*arguments, *text);
        }
      }
      EXPECT_GT(ended, tried_cases(10)) << row.name << ", seed " << kSeed;
    }
  }
}

TEST(CallGrammar, a_control_token_is_asked_for_where_the_vocabulary_has_one) {
  for (const CallSyntax& row : call_syntaxes()) {
    if (row.open.empty() || row.bare || row.messages != nullptr) continue;
    const Vocabulary vocabulary = make_vocabulary(row, true);
    const auto constraint = constrain_turn(vocabulary.family, required_tools(), std::nullopt);
    const auto grammar = compile_grammar((*constraint)->source, vocabulary.trie);
    ASSERT_TRUE(grammar.has_value());
    GrammarMatcher matcher(*grammar);
    const auto mask = matcher.allowed();
    ASSERT_TRUE(mask.has_value());
    EXPECT_EQ((*mask)->count(), 1U) << row.name;
    EXPECT_TRUE((*mask)->allows(*vocabulary.tokenizer->find(row.open))) << row.name;
  }
}

TEST(CallGrammar, parameters_that_cannot_be_written_between_marks_are_refused_by_name) {
  for (const char* key : {"a>b", "</arg_key>", "a\" string=\"true\">", "x<y\">"}) {
    ToolUse tools;
    tools.functions = {{"f", "", {{"type", "object"}, {"properties", {{key, Json::object()}}}}}};
    tools.choice = ToolUse::Choice::kRequired;
    for (const CallSyntax& row : call_syntaxes()) {
      ChatFamily family;
      family.calls = &row;
      const auto constraint = constrain_turn(family, tools, std::nullopt);
      if (row.form != CallForm::kPairs) {
        EXPECT_TRUE(constraint.has_value()) << row.name;
      } else if (std::string_view(key).find(row.pairs.key_end.front()) != std::string_view::npos) {
        ASSERT_FALSE(constraint.has_value()) << row.name << " " << key;
        EXPECT_EQ(constraint.error().status, 400);
        EXPECT_NE(constraint.error().message.find("f."), std::string::npos);
      }
    }
  }
}

// The reader of a turn takes no longer one, at any depth.
TEST(CallGrammar, keys_that_are_too_long_to_be_read_are_refused) {
  for (const CallSyntax& row : call_syntaxes()) {
    if (row.pairs.item_key.empty()) continue;
    const Vocabulary vocabulary = make_vocabulary(row, false);
    for (const size_t size : {PairSyntax::kNestedKeyBytesMax, PairSyntax::kNestedKeyBytesMax + 1}) {
      const bool fits = size == PairSyntax::kNestedKeyBytesMax;
      const std::string key(size, 'k');
      const Json schema = {
          {"type", "object"}, {"properties", {{key, {{"type", "integer"}}}}}, {"required", {key}}};
      ToolUse tools;
      tools.choice = ToolUse::Choice::kRequired;
      tools.functions = {{"now", "", schema}};
      const auto constraint = constrain_turn(vocabulary.family, tools, std::nullopt);
      EXPECT_EQ(constraint.has_value(), fits) << row.name;
      tools.functions[0].parameters = {{"type", "object"}, {"properties", {{"a", schema}}}};
      const auto inner = constrain_turn(vocabulary.family, tools, std::nullopt);
      ASSERT_TRUE(inner.has_value());
      EXPECT_EQ(compile_grammar((*inner)->source, vocabulary.trie).has_value(), fits) << row.name;
      const Turn turn = read_turn(
          rules_of(row, tools), fmt::format("{0}{1}now{2}{3}a>{3}{5}>1{4}{5}>{4}a>{6}{7}", row.open,
                                            row.head, row.name_end, row.pairs.open,
                                            row.pairs.value_end, key, row.call_end, row.close));
      EXPECT_EQ(turn.calls.size(), fits ? 1U : 0U) << row.name;
    }
  }
}

TEST(CallGrammar, functions_whose_names_stand_for_the_user_or_the_model_are_refused) {
  const auto refusal = [](std::string_view family_name, const char* function) -> std::string {
    for (const CallSyntax& row : call_syntaxes()) {
      if (row.name != family_name) continue;
      ToolUse tools;
      tools.functions = {{"now", "", nullptr}, {function, "", nullptr}};
      ChatFamily family;
      family.calls = &row;
      family.messages = row.messages;
      const auto constraint = constrain_turn(family, tools, std::nullopt);
      return constraint ? "" : constraint.error().message;
    }
    return "no such family";
  };
  EXPECT_NE(refusal("functionary-recipients", "all").find("\"all\""), std::string::npos);
  EXPECT_NE(refusal("muse", "user").find("\"user\""), std::string::npos);
  EXPECT_NE(refusal("muse", "self").find("\"self\""), std::string::npos);
  for (const char* const family : {"functionary", "harmony", "hermes"}) {
    for (const char* const function : {"all", "user", "self"}) {
      EXPECT_EQ(refusal(family, function), "") << family;
    }
  }
  EXPECT_EQ(refusal("functionary-recipients", "user"), "");
}

TEST(CallGrammar, an_answer_of_a_form_may_stand_instead_of_calls) {
  ToolUse tools = required_tools();
  tools.choice = ToolUse::Choice::kAuto;
  StructuredOutput answer;
  answer.source = {GrammarSource::Kind::kJsonSchema, R"({"enum": ["yes"]})"};
  answer.parameter = "response_format";
  for (const CallSyntax& row : call_syntaxes()) {
    const Vocabulary vocabulary = make_vocabulary(row, false);
    const auto constraint = constrain_turn(vocabulary.family, tools, answer);
    ASSERT_TRUE(constraint.has_value() && *constraint);
    const auto grammar = compile_grammar((*constraint)->source, vocabulary.trie);
    ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
    std::mt19937_64 random(kSeed);
    bool answered = false;
    for (int round = 0; round < 40; ++round) {
      const auto text = walk(vocabulary, *grammar, random);
      if (!text) continue;
      const Turn turn = read_turn(rules_of(row, tools), *text);
      EXPECT_EQ(turn.calls.empty(), turn.text == "\"yes\"") << row.name << ": " << *text;
      answered = answered || turn.calls.empty();
    }
    EXPECT_TRUE(answered) << row.name;
  }
}

}  // namespace
}  // namespace lockstep
