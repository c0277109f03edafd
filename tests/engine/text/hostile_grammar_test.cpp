// Sources that crashed or stalled other servers, and what is refused: fast, with a reason that says
// where, and within the budgets.
#include <gmock/gmock.h>

#include "engine/base/json.h"
#include "engine/text/grammar/grammar_cache.h"
#include "engine/text/grammar/grammar_matcher.h"
#include "engine/text/model_tokenizer.h"
#include "tests/engine/text/counted_steps.h"
#include "tests/engine/text/small_vocabularies.h"

namespace lockstep {
namespace {

using Kind = GrammarSource::Kind;
using testing::HasSubstr;

const Tokenizer& tokenizer() {
  static const auto made = *make_tokenizer(small_byte_pair());
  return *made;
}

std::shared_ptr<const TokenTrie> trie() {
  static const auto made =
      std::make_shared<const TokenTrie>(tokenizer(), tokenizer().vocabulary_size());
  return made;
}

std::string refusal(Kind kind, std::string text, const GrammarLimits& limits = {}) {
  const auto compiled = compile_grammar({kind, std::move(text)}, trie(), limits);
  return compiled ? "" : compiled.error().message;
}

std::string repeated(std::string_view part, size_t count) {
  std::string text;
  for (size_t index = 0; index < count; ++index) text += part;
  return text;
}

// An object of so many members `"<name><number>": value`.
std::string object_of(std::string_view name, int count, std::string_view value) {
  std::string object;
  for (int index = 0; index < count; ++index) {
    object += fmt::format("{}\"{}{}\":{}", index > 0 ? "," : "{", name, index, value);
  }
  return object + "}";
}

uint64_t steps_of(Kind kind, const std::string& source) {
  const CountedSteps steps;
  EXPECT_TRUE(compile_grammar({kind, source}, trie()).has_value()) << source;
  return steps.count();
}

// A source of a few bytes that makes much says so, the same each time; a usual one says little.
TEST(HostileGrammarTest, what_a_grammar_costs_is_told_in_steps_however_small_its_source) {
  const std::string dear = "(a|b)*a(a|b){9}";
  const uint64_t steps = steps_of(Kind::kRegex, dear);
  EXPECT_GT(steps, 10'000U);
  EXPECT_EQ(steps_of(Kind::kRegex, dear), steps);
  EXPECT_LT(steps_of(Kind::kRegex, "(a|b)*a"), steps / 100);
}

// Others can wait while much is held, and nothing is held when it has ended, however it ended.
TEST(HostileGrammarTest, what_a_compilation_holds_is_told_while_it_holds_it) {
  for (const size_t limit : {size_t{64} << 20U, size_t{1} << 20U}) {
    const CountedSteps counted;
    GrammarLimits limits;
    limits.time = std::chrono::hours(1);
    limits.bytes = limit;
    const auto compiled = compile_grammar({Kind::kRegex, "(a|b)*a(a|b){12}"}, trie(), limits);
    EXPECT_EQ(compiled.has_value(), limit > size_t{1} << 20U);
    EXPECT_GT(counted.most_bytes(), size_t{512} << 10U);
    EXPECT_LE(counted.most_bytes(), limit + (size_t{1} << 20U));
    EXPECT_EQ(counted.held_bytes, 0U);
  }
}

struct Refused {
  Kind kind;
  std::string source;
  std::string reason;
};

TEST(HostileGrammarTest, what_cannot_be_is_refused_with_a_reason) {
  const std::vector<Refused> list = {
      {Kind::kGbnf, "root ::= " + repeated("(", 60000), "nested more than"},
      {Kind::kGbnf, "root ::= " + repeated("(", 60000) + "\"a\"" + repeated(")", 60000), "nested"},
      {Kind::kGbnf, "root ::= root", "no text matches"},
      {Kind::kGbnf, "root ::= root \"a\" | \"b\"", "left-recursive"},
      {Kind::kGbnf, "root ::= a\na ::= b\nb ::= a | \"x\"", "left-recursive"},
      {Kind::kGbnf, "root ::= e root \"a\" | \"b\"\ne ::= \"x\"?", "\"root\" is left-recursive"},
      {Kind::kGbnf, "root ::= \"a\" root", "no text matches"},
      {Kind::kGbnf, "root ::= [a-z]{0,1000000000}", "at most"},
      {Kind::kGbnf, "root ::= ((([a-z]{1,1000}){1,1000}){1,1000})", "states"},
      {Kind::kGbnf, "root ::= nowhere", "\"nowhere\" is used but not defined"},
      {Kind::kGbnf, "other ::= \"a\"", "\"root\" is missing"},
      {Kind::kGbnf, "", "\"root\" is missing"},
      {Kind::kGbnf, "root ::= \"a\"\nroot ::= \"b\"", "defined twice"},
      {Kind::kGbnf, "root ::= \"a", "no end"},
      {Kind::kGbnf, "root ::= [a", "no end"},
      {Kind::kGbnf, "root ::= [z-a]", "backwards"},
      {Kind::kGbnf, "root ::= \"\\q\"", "escape"},
      {Kind::kGbnf, "root ::= \"\\uD800\"", "not a character"},
      {Kind::kGbnf, "root ::= \"a\" )", "line's end"},
      {Kind::kGbnf, "root ::= *", "line's end"},
      {Kind::kGbnf, "root ::= \"a\"{3,2}", "ascend"},
      {Kind::kGbnf, "root ::= \"a\"{2", "at byte 12: \"{\" begins a count such as {1,3}"},
      {Kind::kGbnf, "root ::= \xFF", "UTF-8"},
      {Kind::kRegex, repeated("(", 60000), "nested more than"},
      {Kind::kRegex, "foo**", "nothing to repeat"},
      {Kind::kRegex, "^+", "nothing to repeat"},
      {Kind::kRegex, "{2}", "nothing to repeat"},
      {Kind::kRegex, "a{2", "at byte 1: \"{\" begins a count such as {1,3}; write \\{ for"},
      {Kind::kRegex, "(?=a)b", "look-ahead"},
      {Kind::kRegex, "(?<!a)b", "look-ahead"},
      {Kind::kRegex, "(a)\\1", "not supported"},
      {Kind::kRegex, "\\bword", "not supported"},
      {Kind::kRegex, "\\p{L}", "not supported"},
      {Kind::kRegex, "[z-a]", "range"},
      {Kind::kRegex, "[]", "no character"},
      {Kind::kRegex, "(a", "no end"},
      {Kind::kRegex, "a)", "without"},
      {Kind::kRegex, "a$b", "\"$\""},
      {Kind::kRegex, "a^b", "\"^\""},
      {Kind::kRegex, "\\", "too early"},
      {Kind::kRegex, "\\uD800", "surrogate"},
      {Kind::kRegex, "a{0,1000000000}", "at most"},
      {Kind::kChoice, "[]", "at least one"},
      {Kind::kChoice, "[\"\"]", "not empty"},
      {Kind::kChoice, "[1]", "string"},
      {Kind::kTemplate, R"([{"literal":1}])", "\"/0\""},
      {Kind::kTemplate, R"({"repeat":{"literal":"a"},"min":3,"max":2})", "template"},
      {Kind::kJsonSchema, repeated("[", 100000), "levels deep"},
      {Kind::kJsonSchema, "{\"a\":", "not valid JSON"},
      {Kind::kJsonSchema, R"({"a":1,"a":2})", "twice"},
      {Kind::kJsonSchema, "3", "object or a boolean"},
      {Kind::kJsonSchema, "false", "no text matches"},
      {Kind::kJsonSchema, R"({"$ref":"#"})", "no text matches"},
      {Kind::kJsonSchema, R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "left-recursive"},
      {Kind::kJsonSchema, R"({"$ref":"#/$defs/a","title":"t","$defs":{"a":{"allOf":[
        {"$ref":"#/$defs/a"},{"type":"object"}]}}})",
       "nested too deeply"},
      {Kind::kJsonSchema, R"({"$ref":"http://example.com/schema"})", "within the schema"},
      {Kind::kJsonSchema, R"({"properties":{"a":{"$ref":"#/$defs/x"}}})",
       "\"/properties/a/$ref\": \"#/$defs/x\" leads nowhere"},
      {Kind::kJsonSchema, R"({"properties":{"a/b":{"not":{"type":"null"}}}})",
       "\"/properties/a~1b/not\": this keyword is not supported"},
      {Kind::kJsonSchema, R"({"type":"array","uniqueItems":true})", "/uniqueItems"},
      {Kind::kJsonSchema, R"({"type":"array","contains":{"type":"null"}})", "/contains"},
      {Kind::kJsonSchema, R"({"type":"number","multipleOf":0.1})", "/multipleOf"},
      {Kind::kJsonSchema, R"({"patternProperties":{"^a":{"type":"null"}}})", "/patternProperties"},
      {Kind::kJsonSchema, R"({"if":{"type":"null"}})", "/if"},
      {Kind::kJsonSchema, R"({"type":"string","format":"idn-email"})", "/format"},
      {Kind::kJsonSchema, R"x({"type":"string","pattern":"(?=a)"})x", "look-ahead"},
      {Kind::kJsonSchema,
       R"({"type":"string","pattern":"((((((((((((((((((((((((((((((((((((((("})", "end"},
      {Kind::kJsonSchema, R"({"type":"string","maxLength":1000000000})", "/maxLength"},
      {Kind::kJsonSchema, R"({"type":"string","minLength":-1})", "/minLength"},
      {Kind::kJsonSchema, R"({"type":"integer","minimum":"3"})", "/minimum"},
      {Kind::kJsonSchema, R"({"type":"integer","minimum":5,"maximum":4})", "no text matches"},
      {Kind::kJsonSchema, R"({"type":"thing"})", "\"thing\" is not a type"},
      {Kind::kJsonSchema, R"({"enum":[]})", "at least one"},
      {Kind::kJsonSchema, R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "use anyOf"},
      {Kind::kJsonSchema, R"({"required":["a"],"additionalProperties":false})", "no text matches"},
      {Kind::kJsonSchema, R"({"type":"object","properties":3})", "/properties"},
      {Kind::kJsonSchema, R"({"items":[{"type":"null"}]})", "prefixItems"},
  };
  for (const Refused& test : list) {
    const std::string message = refusal(test.kind, test.source);
    EXPECT_THAT(message, HasSubstr(test.reason)) << test.source.substr(0, 100);
    EXPECT_LT(message.size(), 700U);
  }
}

// Work that grows with the square of the source, or faster, is refused by its size: whatever the
// time, and before it is done.
TEST(HostileGrammarTest, what_is_merged_is_bounded_by_counts) {
  GrammarLimits patient;
  patient.time = std::chrono::hours(1);
  const std::string keywords = object_of("a", 20000, "1");
  const std::string others = object_of("b", 20000, "1");
  std::string types = R"({"type":["x")";
  for (int index = 0; index < 10000; ++index) types += fmt::format(",\"x{}\"", index);
  types += "]}";
  const std::vector<Refused> list = {
      {Kind::kJsonSchema, R"({"allOf":[)" + keywords + "," + others + "]}", "at most 2000"},
      {Kind::kJsonSchema,
       R"({"title":"t","type":"object","$ref":"#/$defs/a","$defs":{"a":)" + keywords + "}}",
       "at most 2000"},
      {Kind::kJsonSchema, R"({"type":"object","anyOf":[)" + keywords + ",true]}", "at most 2000"},
      {Kind::kJsonSchema, R"({"allOf":[{"type":["null"]},)" + types + "]}", "at most 7 types"},
      {Kind::kJsonSchema, types, "at most 7 types"},
  };
  for (const Refused& test : list) {
    EXPECT_THAT(refusal(test.kind, test.source, patient), HasSubstr(test.reason))
        << test.source.substr(0, 100);
  }
}

// A merged schema is as large as the sum of its parts, and there once per alternative.
TEST(HostileGrammarTest, what_is_merged_counts_as_memory) {
  GrammarLimits patient;
  patient.time = std::chrono::hours(1);
  GrammarLimits small = patient;
  small.bytes = size_t{4} << 20U;
  const std::string text(20000, 'x');
  std::string alternatives = R"({"type":"object","anyOf":[{})";
  for (int index = 0; index < 400; ++index) alternatives += R"(,{"title":"t"})";
  // 20 KB in a value and in a name, 400 times.
  for (const std::string& part :
       {R"("description":")" + text + R"(")", R"("examples":[{")" + text + R"(":1}])"}) {
    const std::string source = alternatives + "]," + part + "}";
    EXPECT_THAT(refusal(Kind::kJsonSchema, source, small), HasSubstr("too complex"));
    EXPECT_EQ(refusal(Kind::kJsonSchema, source, patient), "");
  }
  // Each level is twice the one before: both halves are merged, and differ in their order.
  std::string doubled = R"({"$ref":"#/$defs/a14","title":"t","$defs":{)";
  doubled += R"("a0":{"items":{"minimum":1}},"b0":{"items":{"minimum":2}})";
  for (int level = 1; level <= 14; ++level) {
    for (const auto& [name, other] : {std::pair('a', 'b'), std::pair('b', 'a')}) {
      doubled += fmt::format(R"(,"{0}{2}":{{"allOf":[{{"$ref":"#/$defs/{0}{3}"}},)"
                             R"({{"$ref":"#/$defs/{1}{3}"}}]}})",
                             name, other, level, level - 1);
    }
  }
  EXPECT_THAT(refusal(Kind::kJsonSchema, doubled + "}}", small), HasSubstr("too complex"));
}

TEST(HostileGrammarTest, long_lists_that_must_hold_together_are_no_recursion_of_ours) {
  std::string items = R"({"allOf":[{"items":{}})";
  std::string members = R"({"allOf":[{})";
  for (int index = 0; index < 300; ++index) {
    items += fmt::format(R"(,{{"items":{{"minimum":{}}}}})", index);
    members += fmt::format(R"(,{{"properties":{{"a":{{"minimum":{}}}}}}})", index);
  }
  GrammarLimits patient;
  patient.time = std::chrono::hours(1);
  EXPECT_EQ(refusal(Kind::kJsonSchema, items + "]}", patient), "");
  EXPECT_EQ(refusal(Kind::kJsonSchema, members + "]}", patient), "");
}

// Each would take seconds or gigabytes; what ends it is the budget, a generous multiple of which is
// allowed here for a machine that does other things as well.
TEST(HostileGrammarTest, budgets_end_what_takes_too_long) {
  std::string doubled = "root ::= r0\n";
  for (int index = 0; index < 60; ++index) {
    doubled += fmt::format("r{} ::= r{} r{}\n", index, index + 1, index + 1);
  }
  std::string properties = R"({"type":"object","properties":{)";
  for (int index = 0; index < 40000; ++index) {
    properties += fmt::format("{}\"p{}\":{{}}", index > 0 ? "," : "", index);
  }
  const std::vector<GrammarSource> sources = {
      {Kind::kRegex, "(a|b)*a(a|b){24}"},
      {Kind::kRegex, "((a{0,99}){0,99}){0,99}"},
      {Kind::kGbnf, "root ::= ([a-z]|[a-z][a-z]){90000}"},
      {Kind::kJsonSchema, R"({"type":"array","minItems":99999,"items":{"type":"string",
        "minLength":9999}})"},
      {Kind::kJsonSchema, properties + "}}"},
      {Kind::kGbnf, doubled + "r60 ::= \"a\""},
      {Kind::kChoice, "[\"" + repeated("x\",\"", 200000) + "y\"]"},
  };
  for (const GrammarSource& source : sources) {
    const auto start = std::chrono::steady_clock::now();
    static_cast<void>(compile_grammar(source, trie()));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20))
        << source.text.substr(0, 100);
  }
  GrammarLimits small;
  small.bytes = 1U << 16U;
  EXPECT_THAT(refusal(Kind::kRegex, "(a|b)*a(a|b){20}", small), HasSubstr("too complex"));
  small = {};
  small.time = std::chrono::milliseconds(0);
  EXPECT_THAT(refusal(Kind::kRegex, "(a|b)*a(a|b){20}", small), HasSubstr("too complex"));
  small = {};
  small.source_bytes = 10;
  EXPECT_THAT(refusal(Kind::kRegex, "abcdefghijk", small), HasSubstr("at most 10"));
}

// However little is left of a class once its ranges are merged, collecting them takes memory.
TEST(HostileGrammarTest, character_classes_are_counted_in_the_budget) {
  GrammarLimits small;
  small.bytes = 1U << 16U;
  small.time = std::chrono::hours(1);
  constexpr size_t kAtoms = 5000;
  for (const char* atom : {"a", "a-z", "\\S", "\\W", "\\D", "\\s", "\\w-x", "\\u0041", "é-ü"}) {
    for (const char* begin : {"[", "[^b"}) {
      const std::string pattern = fmt::format("{}{}]", begin, repeated(atom, kAtoms));
      EXPECT_THAT(refusal(Kind::kRegex, pattern, small), HasSubstr("too complex")) << atom;
      const std::string schema = R"({"type":"string","pattern":)" + to_text(Json(pattern)) + "}";
      EXPECT_THAT(refusal(Kind::kJsonSchema, schema, small), HasSubstr("too complex")) << atom;
    }
  }
  for (const char* atom : {"a", "a-z", "\\x41"}) {
    const std::string source = fmt::format("root ::= [{}]", repeated(atom, kAtoms));
    EXPECT_THAT(refusal(Kind::kGbnf, source, small), HasSubstr("too complex")) << atom;
  }
  EXPECT_EQ(refusal(Kind::kRegex, fmt::format("[{}\\s]", repeated("a-z", 100)), small), "");
}

TEST(HostileGrammarTest, long_chains_of_rules_are_no_recursion_of_ours) {
  std::string chain = "root ::= r0\n";
  for (int index = 0; index < 15000; ++index) {
    chain += fmt::format("r{} ::= r{}\n", index, index + 1);
  }
  GrammarLimits limits;
  limits.time = std::chrono::minutes(1);
  EXPECT_THAT(refusal(Kind::kGbnf, chain + "r15000 ::= root", limits),
              HasSubstr("no text matches"));
  EXPECT_EQ(refusal(Kind::kGbnf, chain + "r15000 ::= \"a\"", limits), "");
  std::string schema = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int index = 0; index < 3000; ++index) {
    schema += fmt::format("\"d{}\":{{\"$ref\":\"#/$defs/d{}\"}},", index, index + 1);
  }
  EXPECT_EQ(refusal(Kind::kJsonSchema, schema + R"("d3000":{"type":"null"}}})", limits), "");
}

// Follows bytes that the grammar allows until it ends, is refused, or the count is reached.
bool survives(const Grammar& grammar, std::string_view byte, int count) {
  GrammarMatcher matcher(
      std::shared_ptr<const Grammar>(std::shared_ptr<const Grammar>(), &grammar));
  const TokenId token = *tokenizer().find(byte);
  for (int index = 0; index < count; ++index) {
    const auto mask = matcher.allowed();
    if (!mask || !(*mask)->allows(token)) return false;
    if (!matcher.accept(token)) return false;
  }
  return true;
}

TEST(HostileGrammarTest, ambiguity_and_depth_end_one_answer_with_an_error) {
  const auto ambiguous =
      compile_grammar({Kind::kGbnf, "root ::= s \"!\"\ns ::= \"a\" s s | \"a\""}, trie());
  ASSERT_TRUE(ambiguous.has_value());
  EXPECT_TRUE(survives(**ambiguous, "a", 100));
  EXPECT_FALSE(survives(**ambiguous, "a", 5000));
  const auto deep = compile_grammar({Kind::kJsonSchema, "true"}, trie());
  ASSERT_TRUE(deep.has_value());
  EXPECT_TRUE(survives(**deep, "[", 400));
  EXPECT_FALSE(survives(**deep, "[", 5000));
  // A rule that is recursive at its end alone goes on for ever.
  const auto flat = compile_grammar({Kind::kGbnf, "root ::= \"a\" root | \"\""}, trie());
  ASSERT_TRUE(flat.has_value());
  EXPECT_TRUE(survives(**flat, "a", 20000));
}

TEST(HostileGrammarTest, a_cache_gives_the_same_grammar_again_and_forgets_the_oldest) {
  GrammarCache cache(tokenizer(), tokenizer().vocabulary_size());
  const auto source = [](size_t index) {
    return GrammarSource{Kind::kRegex, fmt::format("a{{{}}}", index)};
  };
  const auto first = cache.find_or_compile(source(0));
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(*cache.find_or_compile(source(0)), *first);
  EXPECT_FALSE(cache.find_or_compile({Kind::kRegex, "("}).has_value());
  for (size_t index = 1; index <= GrammarCache::kCountMax; ++index) {
    ASSERT_TRUE(cache.find_or_compile(source(index)).has_value());
  }
  EXPECT_NE(*cache.find_or_compile(source(0)), *first);
}

}  // namespace
}  // namespace lockstep
