// The cost of masks is bounded, in counted work: whatever the source, however large the vocabulary,
// and however much others have used the same grammar.
#include <gtest/gtest.h>

#include <random>

#include "engine/text/grammar/grammar_cache.h"
#include "engine/text/grammar/grammar_matcher.h"
#include "engine/text/model_tokenizer.h"
#include "tests/engine/text/small_vocabularies.h"

namespace lockstep {
namespace {

using Kind = GrammarSource::Kind;

// The visits that are charged for, and one move more.
constexpr size_t kVisitsPerMaskMax =
    MaskMemory::kWorkMax / MaskMemory::kWorkPerVisit + Steps::kVisitsMax + Steps::kHeadsMax;

// 30,000 tokens of letters and JSON's marks beside the single bytes.
const Tokenizer& tokenizer() {
  static const auto made = [] {
    TokenizerData data = small_byte_pair();
    std::mt19937_64 random(17);
    constexpr std::string_view kLetters = "abcdefghijklmnop\"{}[],:0123456789";
    for (int index = 0; index < 30000; ++index) {
      std::string text = "aa";  // no token of the small vocabulary's own
      const size_t letters = index % 3 == 0 ? kLetters.size() : 16;
      for (size_t size = 1 + random() % 10; size > 0; --size) text += kLetters[random() % letters];
      add_token(data, text + fmt::format("{:x}", index));
    }
    return *make_tokenizer(std::move(data));
  }();
  return *made;
}

std::shared_ptr<const TokenTrie> trie() {
  static const auto made =
      std::make_shared<const TokenTrie>(tokenizer(), tokenizer().vocabulary_size());
  return made;
}

std::shared_ptr<const Grammar> compile(Kind kind, const std::string& source) {
  auto compiled = compile_grammar({kind, source}, trie());
  EXPECT_TRUE(compiled.has_value()) << compiled.error().message;
  return compiled ? *compiled : nullptr;
}

// One rule that a long chain of calls leads back to: a move passes the whole chain, and every text
// of letters has a stack of its own.
std::string chained_rules() {
  std::string source = "root ::= a\na ::= \"!\"";
  for (char letter = 'a'; letter <= 'p'; ++letter) {
    source += fmt::format(" | \"{}\" r0 \"{}\"", letter, static_cast<char>(letter - 'a' + 'A'));
  }
  for (int index = 0; index < 3999; ++index) {
    source += fmt::format("\nr{} ::= r{}", index, index + 1);
  }
  return source + "\nr3999 ::= a";
}

TEST(GrammarWork, a_mask_that_needs_too_much_is_given_up_early) {
  const auto grammar = compile(Kind::kGbnf, chained_rules());
  ASSERT_NE(grammar, nullptr);
  MaskMemory memory(grammar->automaton(), *trie());
  Steps steps(grammar->automaton());
  Stacks stacks;
  Configuration at;
  ASSERT_TRUE(steps.enter(grammar->automaton().root(), Stacks::kBottom, stacks, at));
  for (int time = 0; time < 2; ++time) {
    const size_t before = memory.visits();
    TokenMask mask(*trie());
    EXPECT_FALSE(memory.allow(at, stacks, mask));
    EXPECT_LE(memory.visits() - before, kVisitsPerMaskMax);
  }
  EXPECT_LT(memory.size_bytes(), 4 * MaskMemory::kBytesMax);
  EXPECT_FALSE(GrammarMatcher(grammar).allowed().has_value());
}

// 20,000 words: a state that reads any letters takes what begins with them at once.
TEST(GrammarWork, words_are_not_looked_at_letter_by_letter) {
  TokenizerData data = small_byte_pair();
  std::mt19937_64 random(17);
  for (int index = 0; index < 20000; ++index) {
    std::string word = index % 2 == 0 ? " zz" : "zz";
    for (int letter = 0; letter < 12; ++letter) {
      word += static_cast<char>('a' + static_cast<int>(random() % 26));
    }
    add_token(data, word);
  }
  const auto words = *make_tokenizer(std::move(data));
  const TokenTrie trie(*words, words->vocabulary_size());
  ASSERT_GT(trie.nodes().size(), 100'000U);
  const auto grammar = compile(Kind::kRegex, "[a-z]+( [a-z]+){9}!");
  ASSERT_NE(grammar, nullptr);
  Steps steps(grammar->automaton());
  Stacks stacks;
  Configuration start;
  Configuration at;
  ASSERT_TRUE(steps.enter(grammar->automaton().root(), Stacks::kBottom, stacks, start));
  ASSERT_TRUE(steps.step(start, 'a', stacks, at));
  MaskMemory memory(grammar->automaton(), trie);
  TokenMask mask(trie);
  ASSERT_TRUE(memory.allow(at, stacks, mask));
  EXPECT_GE(mask.count(), 20000U);
  EXPECT_LT(memory.work(), 5000U);
}

TEST(GrammarWork, preparing_ends_with_its_time) {
  const auto grammar = compile(Kind::kJsonObject, "");
  MaskMemory memory(grammar->automaton(), *trie());
  memory.prepare(std::chrono::steady_clock::now() - std::chrono::hours(1));
  EXPECT_EQ(memory.visits(), 0U);
}

// Goes through an answer, and back: every mask is charged what it is charged alone.
TEST(GrammarWork, what_a_mask_is_charged_does_not_depend_on_what_is_remembered) {
  struct Example {
    Kind kind;
    std::string source;
    std::string answer;
  };
  const std::vector<Example> examples = {
      {Kind::kJsonObject, "", R"({"a": [1, {"b": ["aab", []]}], "c": {"d": true}})"},
      {Kind::kGbnf, "root ::= s \"!\"\ns ::= \"a\" s s | \"a\"", "aaaaaaaaaaaa"},
      {Kind::kJsonSchema, R"({"properties":{"a":{"type":"string","maxLength":30},"b":{"$ref":"#"}},
        "required":["a"]})",
       R"({"a": "aaaab", "b": {"a": "aaaabbb", "b": {"a": ""}}})"},
      {Kind::kRegex, "(a|b)*a(a|b){6}!?", "aababbabbababaaab"},
  };
  for (const Example& example : examples) {
    const auto grammar = compile(example.kind, example.source);
    ASSERT_NE(grammar, nullptr);
    Steps steps(grammar->automaton());
    Stacks stacks;
    std::vector<Configuration> places(1);
    ASSERT_TRUE(steps.enter(grammar->automaton().root(), Stacks::kBottom, stacks, places[0]));
    for (const char byte : example.answer) {
      Configuration next;
      ASSERT_TRUE(steps.step(places.back(), static_cast<uint8_t>(byte), stacks, next));
      places.push_back(std::move(next));
    }
    std::vector<size_t> alone;
    MaskMemory together(grammar->automaton(), *trie());
    const auto check = [&](size_t index) {
      MaskMemory cold(grammar->automaton(), *trie());
      TokenMask cold_mask(*trie());
      TokenMask mask(*trie());
      const bool allowed = cold.allow(places[index], stacks, cold_mask);
      EXPECT_EQ(together.allow(places[index], stacks, mask), allowed);
      EXPECT_EQ(together.work(), cold.work()) << example.source << " at " << index;
      EXPECT_TRUE(std::ranges::equal(mask.words(), cold_mask.words()));
    };
    for (size_t index = 0; index < places.size(); ++index) check(index);
    for (size_t index = places.size(); index-- > 0;) check(index);
  }
}

TEST(GrammarWork, grammars_that_live_are_counted_and_bounded) {
  const size_t before = Grammar::live_bytes();
  {
    const auto grammar = compile(Kind::kJsonObject, "");
    EXPECT_EQ(Grammar::live_bytes(), before + grammar->size_bytes());
    const size_t size = grammar->size_bytes();
    GrammarMatcher matcher(grammar);
    for (const char* text : {"{", "\"", "a", "\"", ":", "[", "1"}) {
      ASSERT_TRUE(matcher.allowed().has_value());
      ASSERT_TRUE(matcher.accept(*tokenizer().find(text)).has_value());
    }
    EXPECT_GT(grammar->size_bytes(), size);
    EXPECT_EQ(Grammar::live_bytes(), before + grammar->size_bytes());
    const auto refused = compile_grammar({Kind::kRegex, "a"}, trie(), {}, before);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().kind, ErrorKind::kUnavailable);
  }
  EXPECT_EQ(Grammar::live_bytes(), before);
  EXPECT_TRUE(compile_grammar({Kind::kRegex, "a"}, trie(), {}, before).has_value());
}

}  // namespace
}  // namespace lockstep
