// Which texts the grammars of every notation accept, and that masks say the same as the texts.
#include <gmock/gmock.h>

#include <random>

#include "engine/text/grammar/grammar_matcher.h"
#include "engine/text/model_tokenizer.h"
#include "tests/engine/text/small_vocabularies.h"

namespace lockstep {
namespace {

using Kind = GrammarSource::Kind;

// A byte-level vocabulary with tokens that cross the borders of what grammars tell apart.
const Tokenizer& tokenizer() {
  static const std::unique_ptr<Tokenizer> made = [] {
    TokenizerData data = small_byte_pair();
    const auto add = [&](std::string_view text) {
      std::string letters;
      for (const char byte : text) {
        letters += byte_level_character(static_cast<unsigned char>(byte));
      }
      if (std::ranges::find(data.tokens, letters) == data.tokens.end()) {
        add_token(data, letters);
      }
    };
    for (const char* text :
         {"{\"",   "\":",      "\": \"",   "\"}",    "\"},",  "\"}]",   "}}",     "]}",    "},{",
          "},{\"", "\",\"",    "\": {\"",  "[[",     "]]",    "[{",     ", ",     ": ",    "true",
          "false", "null",     "alse",     "12",     "34",    "-1",     ".5",     "e+",    "0.",
          "00",    "abc",      "ab",       "bc",     "name",  "\"name", "name\"", "é",     "\xC3",
          "\xA9",  "日本",     "\xE6\x97", "\xA5x",  "\\\"",  "\\n",    "\\u",    "\\u00", "  ",
          "\n",    "a b",      "hello",    " world", "\"a\"", "\"b\":", "a\":1",  "1,",    "1}",
          "1]",    "\x80\x80", "\\"}) {
      add(text);
    }
    auto tokenizer = make_tokenizer(std::move(data));
    EXPECT_TRUE(tokenizer.has_value()) << (tokenizer ? "" : tokenizer.error().message);
    return std::move(*tokenizer);
  }();
  return *made;
}

std::shared_ptr<const TokenTrie> trie() {
  static const auto made =
      std::make_shared<const TokenTrie>(tokenizer(), tokenizer().vocabulary_size() + 3);
  return made;
}

Result<std::shared_ptr<const Grammar>> compile(Kind kind, std::string text) {
  return compile_grammar({kind, std::move(text)}, trie());
}

// Byte by byte, by the automaton alone.
bool accepts(const Grammar& grammar, std::string_view text) {
  Stacks stacks;
  Steps steps(grammar.automaton());
  Configuration at;
  Configuration next;
  if (!steps.enter(grammar.automaton().root(), Stacks::kBottom, stacks, at)) return false;
  for (const char byte : text) {
    if (!steps.step(at, static_cast<uint8_t>(byte), stacks, next)) return false;
    std::swap(at, next);
  }
  return at.ended;
}

struct Case {
  Kind kind;
  std::string source;
  std::vector<std::string> good;
  std::vector<std::string> bad;
};

std::vector<Case> cases() {
  return {
      {Kind::kRegex, "abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
      {Kind::kRegex, "^a|b$", {"a", "b"}, {"ab", ""}},
      {Kind::kRegex, "(ab|c)*d?", {"", "abcabd", "d", "ccc"}, {"a", "dd", "abd "}},
      {Kind::kRegex, "a{2,3}b{2}c{1,}", {"aabbc", "aaabbccc"}, {"abbc", "aaaabbc", "aabc"}},
      {Kind::kRegex, "[a-c\\d_-]+", {"a-1_c", "9"}, {"", "d", "a b"}},
      {Kind::kRegex, "[\\w-.]+@[\\d-x-z]", {"a-b.c@-", "a@x", "a@z"}, {"a/b@x", "a@y"}},
      {Kind::kRegex, "[^a-y]", {"z", "é", "日", "\n"}, {"b", "zz", "\xC3", ""}},
      {Kind::kRegex,
       ".",
       {"a", "é", "😀", "\"", "\t"},
       {"\n", "\r", "\xE2\x80\xA8", "ab", "\xED\xA0\x80", "\xC0\x80", "\xF4\x90\x80\x80"}},
      {Kind::kRegex, "\\w+\\s\\W\\D\\S", {"ab1_ -x!"}, {"ab -1!"}},
      {Kind::kRegex, "\\x41\\u00e9\\u{1F600}\\uD83D\\uDE00\\.\\/", {"Aé😀😀./"}, {"A"}},
      {Kind::kRegex, "(?:a|(?<n>b)){2}", {"ab", "ba"}, {"a", "abc"}},
      {Kind::kRegex, "a*?b+?c??", {"aabb", "bc"}, {"a", "c"}},
      {Kind::kRegex, "[а-я]{2}", {"да"}, {"д", "дa", "ДА"}},
      {Kind::kRegex, "", {""}, {"a"}},
      {Kind::kRegex, "(a*)*(b?)+", {"", "aab", "bbb"}, {"ba"}},
      {Kind::kChoice,
       "[\"yes\",\"no\",\"yesterday\",\"né\"]",
       {"yes", "no", "yesterday", "né"},
       {"", "y", "yest", "yesno", "n"}},
      {Kind::kGbnf,
       "root ::= \"a\" b* [x-z]? # end\nb ::= (\"b\" | \"c\"\n d) {1,2}\nd ::= \"d\"",
       {"a", "ab", "abcdz", "abb"},
       {"b", "acz", "axx"}},
      {Kind::kGbnf, "root ::=\n  \"(\" root \")\"\n  | [^()\\n]+", {"x", "((hé))"}, {"(x", "()"}},
      {Kind::kGbnf, "root ::= \"\\x41\\u00e9\\\"\\\\\\n\" .", {"Aé\"\\\n "}, {"Aé"}},
      {Kind::kGbnf, "root ::= x root | y\nx ::= [ab]\ny ::= \"\"", {"", "abba"}, {"c"}},
      {Kind::kGbnf,
       "root ::= l{2}\nl ::= \"a\" | \"ab\" | \"b\"",
       {"aa", "ab", "aba", "abb", "bab"},
       {"a", "b", "ababa"}},
      {Kind::kTemplate,
       R"([{"literal":"<call>\n"},{"schema":{"type":"integer"}},{"literal":"\n</call>"}])",
       {"<call>\n12\n</call>"},
       {"<call>\n", "12"}},
      {Kind::kTemplate,
       R"({"repeat":[{"any_of":[{"literal":"a"},{"regex":"[0-9]"}]}],
                            "min":1,"max":3,"separator":", "})",
       {"a", "1, a", "a, 2, a"},
       {"", "a,", "a, a, a, a", "aa"}},
      {Kind::kJsonObject,
       "",
       {"{}", R"({"a":[1,-2.5e3,{"b": null}], "c":"\"é\u00e9\ud83d\ude00"})"},
       {"", "[]", "{", "{ }", "{\"a\":01}", "{\"a\":\"\n\"}", "{\"a\":\"\\ud83d\"}", "{}{}",
        "{\"a\":1,}", "{\"a\": \"\xC3\"}"}},
      {Kind::kJsonSchema,
       R"({"type":"object","properties":{"a":{"type":"string"},
        "b":{"type":"integer"}},"required":["a","b"],"additionalProperties":false})",
       {R"({"a":"x","b":1})", R"({"a": "", "b": -7})"},
       {R"({"b":1,"a":"x"})", R"({"a":"x"})", "{}", R"({"a":"x","b":1.5})",
        R"({"a":"x","b":1,"c":2})"}},
      {Kind::kJsonSchema,
       R"({"properties":{"a":{},"b":{"type":"null"},"c":{"const":3}},
        "required":["c"]})",
       {R"({"c":3})", R"({"a":[],"b":null,"c":3})", R"({"b":null,"c":3})", R"({"a":{},"c":3})"},
       {"{}", R"({"a":1})", R"({"c":3,"a":1})", R"({"c":4})", R"(,"c":3})", R"({,"c":3})"}},
      {Kind::kJsonSchema,
       R"({"properties":{"a":{"type":"null"},"b":{"type":"null"}},
        "additionalProperties":{"type":"integer"}})",
       {"{}", R"({"a":null})", R"({"b":null})", R"({"a":null,"b":null,"x":1,"ab":2})", R"({"c":1})",
        R"({"":1})"},
       {R"({"a":1})", R"({"b":null,"a":1})", R"({"x":null})", R"({"x":1,"a":2})"}},
      {Kind::kJsonSchema,
       R"({"type":"array","items":{"enum":[1,"a",null,[2]]},"minItems":1,
        "maxItems":3})",
       {"[1]", "[\"a\",null, [2]]"},
       {"[]", "[1,1,1,1]", "[2]", "[1,]"}},
      {Kind::kJsonSchema,
       R"({"type":"array","prefixItems":[{"type":"boolean"},{"type":"null"}]})",
       {"[true,null]"},
       {"[]", "[true]", "[true,null,1]", "[null,true]"}},
      {Kind::kJsonSchema,
       R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", R"("日本語")", R"("a\n\u00e9")", R"("\ud83d\ude00x")"},
       {R"("a")", R"("abcd")", R"("")", "ab", R"("\ud83d\ude00")"}},
      {Kind::kJsonSchema,
       R"({"type":"string","pattern":"^a\"[\\\\x]$"})",
       {R"("a\"\\")", R"("a\"x")"},
       {R"("a\"")", R"("a"x")"}},
      {Kind::kJsonSchema,
       R"({"type":"string","pattern":"b+"})",
       {R"("abc")", R"("b")"},
       {R"("a")"}},
      {Kind::kJsonSchema,
       R"({"type":"integer","minimum":-12,"maximum":105})",
       {"-12", "-9", "-1", "0", "7", "99", "100", "105"},
       {"-13", "-20", "106", "110", "200", "1000", "01", "-0", "1.0", ""}},
      {Kind::kJsonSchema,
       R"({"type":"integer","exclusiveMinimum":0})",
       {"1", "10", "999999999999999"},
       {"0", "-1"}},
      {Kind::kJsonSchema,
       R"({"type":"number","minimum":0.5,"exclusiveMaximum":2})",
       {"0.5", "0.50", "0.51", "1", "1.0", "1.999"},
       {"0.4", "0", "2", "2.0", "0.49999", "-1"}},
      {Kind::kJsonSchema,
       R"({"type":"number","minimum":-1.25,"maximum":-0.75})",
       {"-1.25", "-1", "-0.75", "-0.8", "-1.2"},
       {"-1.26", "-0.74", "-0.7", "1", "-1.3", "0"}},
      {Kind::kJsonSchema,
       R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{
        "v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},
        "required":["v","next"]}}})",
       {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"},
       {R"({"v":1})", R"({"v":1,"next":{"v":2}})"}},
      {Kind::kJsonSchema,
       R"({"allOf":[{"properties":{"a":{"type":"integer"}},"required":["a"]},
        {"properties":{"b":{"type":"null"},"a":{"minimum":3}},"required":["b"]}],"type":"object"})",
       {R"({"a":3,"b":null})"},
       {R"({"a":2,"b":null})", R"({"a":3})"}},
      {Kind::kJsonSchema,
       R"({"oneOf":[{"type":"object","properties":{"k":{"const":"x"},
        "v":{"type":"integer"}},"required":["k","v"]},{"type":"object","properties":{
        "k":{"const":"y"}},"required":["k"]}]})",
       {R"({"k":"x","v":1})", R"({"k":"y"})"},
       {R"({"k":"y","v":1})", R"({"k":"x"})"}},
      {Kind::kJsonSchema,
       R"({"type":["string","null"],"format":"date"})",
       {R"("2024-02-28")", "null", R"("1999-12-31")"},
       {R"("2024-02-30")", R"("x")", R"("2024-13-01")"}},
      {Kind::kJsonSchema,
       R"({"type":"object","additionalProperties":{"type":"boolean"}})",
       {"{}", R"({"a":true,"b": false})"},
       {R"({"a":1})"}},
      {Kind::kJsonSchema, "true", {"1", "[]", "\"x\"", "{\"a\":[{}]}"}, {"", "x"}},
  };
}

TEST(GrammarTest, texts_are_accepted_and_rejected) {
  for (const Case& test : cases()) {
    const auto grammar = compile(test.kind, test.source);
    ASSERT_TRUE(grammar.has_value()) << test.source << ": " << grammar.error().message;
    for (const std::string& text : test.good) {
      EXPECT_TRUE(accepts(**grammar, text)) << test.source << " should accept " << text;
    }
    for (const std::string& text : test.bad) {
      EXPECT_FALSE(accepts(**grammar, text)) << test.source << " should not accept " << text;
    }
  }
}

// Whether a token may follow, by its bytes one after the other.
bool may_follow(const Grammar& grammar, const Configuration& at, Stacks& stacks, TokenId token) {
  Steps steps(grammar.automaton());
  Configuration here = at;
  Configuration next;
  for (const char byte : grammar.trie().text(token)) {
    if (!steps.step(here, static_cast<uint8_t>(byte), stacks, next)) return false;
    std::swap(here, next);
  }
  return !grammar.trie().text(token).empty() && (here.ended || !here.heads.empty());
}

TEST(GrammarTest, masks_allow_exactly_the_tokens_whose_bytes_may_follow) {
  constexpr unsigned kSeed = 20240;
  RecordProperty("seed", static_cast<int>(kSeed));
  std::mt19937 random(kSeed);
  for (const Case& test : cases()) {
    const auto grammar = compile(test.kind, test.source);
    ASSERT_TRUE(grammar.has_value());
    for (int walk = 0; walk < 12; ++walk) {
      GrammarMatcher matcher(*grammar);
      Stacks stacks;
      Steps steps((*grammar)->automaton());
      Configuration at;
      Configuration next;
      ASSERT_TRUE(steps.enter((*grammar)->automaton().root(), Stacks::kBottom, stacks, at));
      std::string text;
      for (int step = 0; step < 24 && !matcher.must_end(); ++step) {
        const auto mask = matcher.allowed();
        ASSERT_TRUE(mask.has_value()) << mask.error().message;
        std::vector<TokenId> allowed;
        std::vector<float> logits(trie()->vocabulary_size(), 1.0F);
        (*mask)->apply(logits);
        for (size_t index = 0; index < logits.size(); ++index) {
          const auto token = static_cast<TokenId>(index);
          const bool expected = may_follow(**grammar, at, stacks, token);
          ASSERT_EQ((*mask)->allows(token), expected)
              << test.source << " after \"" << text << "\", token \"" << trie()->text(token) << '"';
          ASSERT_EQ(logits[index] == 1.0F, expected);
          if (expected) allowed.push_back(token);
        }
        ASSERT_EQ((*mask)->count(), allowed.size());
        ASSERT_EQ(matcher.can_end(), accepts(**grammar, text));
        if (allowed.empty()) break;
        const TokenId token = allowed[random() % allowed.size()];
        ASSERT_TRUE(matcher.accept(token).has_value());
        for (const char byte : trie()->text(token)) {
          ASSERT_TRUE(steps.step(at, static_cast<uint8_t>(byte), stacks, next));
          std::swap(at, next);
        }
        text += trie()->text(token);
      }
    }
  }
}

// Any of the tokens that may come next; none: only the end may.
std::optional<TokenId> any_allowed(GrammarMatcher& matcher, std::mt19937& random) {
  std::vector<TokenId> allowed;
  const auto mask = matcher.allowed();
  for (size_t index = 0; index < trie()->vocabulary_size(); ++index) {
    const auto token = static_cast<TokenId>(index);
    if ((*mask)->allows(token)) allowed.push_back(token);
  }
  return allowed.empty() ? std::nullopt : std::optional(allowed[random() % allowed.size()]);
}

// Guesses are allowed tokens, and now and then any.
TEST(GrammarTest, guesses_are_followed_as_far_as_they_are_allowed_and_leave_no_trace) {
  constexpr unsigned kSeed = 20241;
  RecordProperty("seed", static_cast<int>(kSeed));
  std::mt19937 random(kSeed);
  size_t followed = 0;
  for (const Case& test : cases()) {
    const auto grammar = compile(test.kind, test.source);
    ASSERT_TRUE(grammar.has_value());
    GrammarMatcher matcher(*grammar);
    for (int step = 0; step < 24 && !matcher.must_end(); ++step) {
      std::vector<TokenId> guesses;
      GrammarMatcher ahead = matcher;
      size_t fitting = 0;
      bool fits = true;
      while (guesses.size() < 8) {
        const bool is_wild = random() % 6 == 0;
        const auto allowed = ahead.allowed();
        const auto token =
            is_wild || !fits
                ? std::optional(static_cast<TokenId>(random() % trie()->vocabulary_size()))
                : any_allowed(ahead, random);
        if (!token) break;
        guesses.push_back(*token);
        fits = fits && (*allowed)->allows(*token) && ahead.accept(*token).has_value();
        fitting += fits ? 1 : 0;
      }
      const size_t stacks = matcher.stack_count();
      ASSERT_EQ(matcher.fitting(guesses), fitting) << test.source;
      ASSERT_EQ(matcher.stack_count(), stacks);
      followed += fitting;
      const auto token = any_allowed(matcher, random);
      if (!token) break;
      ASSERT_TRUE(matcher.accept(*token).has_value());
    }
  }
  EXPECT_GT(followed, 100U);
}

// A forced text can be no other: any random walk over allowed tokens spells it.
TEST(GrammarTest, a_forced_text_is_what_every_answer_spells) {
  const auto text_of = [&](std::span<const TokenId> tokens) {
    std::string text;
    for (const TokenId token : tokens) text += trie()->text(token);
    return text;
  };
  const std::pair<const char*, std::string> tests[] = {
      {"(one two three|one two four)[0-9] and the end", "one two "},
      {"[ab]cde", ""},
      {"same(same)?", "same"},
  };
  for (const auto& [source, expected] : tests) {
    const auto grammar = compile(Kind::kRegex, source);
    ASSERT_TRUE(grammar.has_value()) << source;
    GrammarMatcher matcher(*grammar);
    const size_t stacks = matcher.stack_count();
    std::array<TokenId, 64> tokens{};
    const size_t count = matcher.forced(tokens);
    EXPECT_EQ(text_of(std::span(tokens).first(count)), expected) << source;
    EXPECT_EQ(matcher.stack_count(), stacks);
    EXPECT_EQ(matcher.fitting(std::span(tokens).first(count)), count);
    if (count > 1) {
      EXPECT_EQ(matcher.forced(std::span(tokens).first(1)), 1U);
    }
  }
  constexpr unsigned kSeed = 20242;
  RecordProperty("seed", static_cast<int>(kSeed));
  std::mt19937 random(kSeed);
  size_t forced = 0;
  for (const Case& test : cases()) {
    const auto grammar = compile(test.kind, test.source);
    ASSERT_TRUE(grammar.has_value());
    GrammarMatcher matcher(*grammar);
    for (int step = 0; step < 24 && !matcher.must_end(); ++step) {
      std::array<TokenId, 8> tokens{};
      const std::string expected = text_of(std::span(tokens).first(matcher.forced(tokens)));
      forced += expected.size();
      GrammarMatcher ahead = matcher;
      std::string spelled;
      while (spelled.size() < expected.size()) {
        const auto token = any_allowed(ahead, random);
        if (!token) break;  // the vocabulary cannot spell it
        spelled += trie()->text(*token);
        ASSERT_TRUE(ahead.accept(*token).has_value());
      }
      const size_t length = std::min(spelled.size(), expected.size());
      EXPECT_EQ(spelled.substr(0, length), expected.substr(0, length)) << test.source;
      const auto token = any_allowed(matcher, random);
      if (!token) break;
      ASSERT_TRUE(matcher.accept(*token).has_value());
    }
  }
  EXPECT_GT(forced, 100U);
}

TEST(GrammarTest, no_control_or_end_token_is_text) {
  for (const TokenId token : tokenizer().end_tokens()) EXPECT_FALSE(trie()->is_text(token));
  const auto begin = tokenizer().find("<|begin|>");
  ASSERT_TRUE(begin.has_value());
  EXPECT_FALSE(trie()->is_text(*begin));
}

TEST(GrammarTest, a_control_token_comes_where_a_template_asks_for_it_and_nowhere_else) {
  const TokenId begin = *tokenizer().find("<|begin|>");
  const auto grammar =
      compile(Kind::kTemplate, fmt::format(R"([{{"literal": "a"}}, {{"token": {}}}])", begin));
  ASSERT_TRUE(grammar.has_value());
  GrammarMatcher matcher(*grammar);
  EXPECT_FALSE((*matcher.allowed())->allows(begin));
  ASSERT_TRUE(matcher.accept(*tokenizer().find("a")).has_value());
  EXPECT_EQ((*matcher.allowed())->count(), 1U);
  EXPECT_TRUE((*matcher.allowed())->allows(begin));
  ASSERT_TRUE(matcher.accept(begin).has_value());
  EXPECT_TRUE(matcher.must_end());
}

TEST(GrammarTest, a_text_goes_on_until_a_mark_that_does_not_stand_in_it) {
  const auto grammar = compile(Kind::kTemplate, R"([{"until": "</é>"}, {"literal": "</é>!"}])");
  ASSERT_TRUE(grammar.has_value());
  for (const char* text : {"</é>!", "a</é>!", "<</é>!", "</</é>!", "</éé</é>!", "<<</e></é>!"}) {
    EXPECT_TRUE(accepts(**grammar, text)) << text;
  }
  for (const char* text : {"", "a", "</é>", "</é></é>!", "a</é>b</é>!", "<</é></é>!"}) {
    EXPECT_FALSE(accepts(**grammar, text)) << text;
  }
  EXPECT_FALSE(compile(Kind::kTemplate, R"({"until": ""})").has_value());
}

TEST(GrammarTest, a_mark_may_begin_within_itself) {
  for (const std::string mark : {"aa", "aab", "abab", "abaab", "aba", "éaé"}) {
    const auto grammar = compile(Kind::kTemplate, R"({"until": ")" + mark + "\"}");
    ASSERT_TRUE(grammar.has_value()) << mark;
    // Every text of up to seven of these letters.
    const std::vector<std::string> letters = {"a", "b", "é"};
    std::vector<std::string> texts = {""};
    for (size_t index = 0; index < texts.size(); ++index) {
      const std::string text = texts[index];
      EXPECT_EQ(accepts(**grammar, text), text.find(mark) == text.npos) << mark << ": " << text;
      if (index >= 1093) continue;  // 3^0 + … + 3^6
      for (const std::string& letter : letters) texts.push_back(text + letter);
    }
  }
  EXPECT_FALSE(
      compile(Kind::kTemplate, R"({"until": ")" + std::string(300, 'a') + "\"}").has_value());
}

TEST(GrammarTest, arguments_are_written_in_the_syntax_of_their_values) {
  const std::string schema =
      R"({"type": "object", "properties": {"a": {"type": "string"}, "b c": {"type": "boolean"},
          "d": {"type": ["null", "integer"]}, "e": {"enum": ["x", {"f": [true, null]}]},
          "g": {"type": "object"}}})";
  const auto grammar = compile(Kind::kTemplate, R"({"arguments": )" + schema +
                                                    R"(, "values": "marked", "quote": {"literal":
                                                    "<|>"}, "quote_text": "<|>"})");
  ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
  for (const char* text :
       {"{}", "{a:<|>x\"}\n<|>}", "{a:<|><|>, <|>b c<|>:true}", "{d:null}", "{d:-12}",
        "{e:<|>x<|>}", "{e:{f:[true,null]}}", "{g:{h_1:[1.5,<|>y<|>,{}]}}"}) {
    EXPECT_TRUE(accepts(**grammar, text)) << text;
  }
  for (const char* text : {"", "{a:\"x\"}", "{a:<|>x}", "{b c:true}", "{d:None}", "{\"d\":1}",
                           "{g:{h i:1}}", "{a:<|>x<|>,}"}) {
    EXPECT_FALSE(accepts(**grammar, text)) << text;
  }
  const auto refused =
      compile(Kind::kTemplate, R"({"arguments": )" + schema + R"(, "values": "python"})");
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("b c"), std::string::npos) << refused.error().message;
  const auto python = compile(Kind::kTemplate, R"({"arguments": {"type": "object", "properties":
      {"a": {"type": "string"}, "b": {"enum": [true, {"f": [false, null]}]}, "c": {}},
      "required": ["a"], "additionalProperties": {"type": "integer"}}, "values": "python"})");
  ASSERT_TRUE(python.has_value()) << python.error().message;
  for (const char* text :
       {R"((a="x\"\n"))", R"((a="",b=True))", R"((a="", b={"f": [False, None]}, d=1))",
        R"((a="", c=[None, True, {"k": 1}]))"}) {
    EXPECT_TRUE(accepts(**python, text)) << text;
  }
  for (const char* text : {"()", R"({"a": ""})", R"((a="\/"))", R"((a="", b=true))",
                           R"((a="", a=1))", R"((a="", c=null))"}) {
    EXPECT_FALSE(accepts(**python, text)) << text;
  }
  EXPECT_FALSE(compile(Kind::kTemplate, R"({"arguments": {"anyOf": [{"type": "object"}]},
                                            "values": "python"})")
                   .has_value());
}

TEST(GrammarTest, a_token_that_is_not_allowed_is_refused) {
  const auto grammar = compile(Kind::kRegex, "[0-9]+");
  ASSERT_TRUE(grammar.has_value());
  GrammarMatcher matcher(*grammar);
  EXPECT_FALSE(matcher.accept(*tokenizer().find("a")).has_value());
  EXPECT_FALSE(matcher.allowed().has_value());
}

}  // namespace
}  // namespace lockstep
