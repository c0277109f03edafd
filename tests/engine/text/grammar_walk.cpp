// Random answers that a grammar allows, for tests that hold them against others' validators.
//
//   grammar_walk MODEL SEED COUNT < JSON
//
// reads {"kind": "schema" | "object" | "regex" | "choice" | "gbnf", "text": …} per line, and writes
// {"error": …} or {"texts": […]}: the walks that ended, with the vocabulary of the model file.
#include <cstdio>
#include <iostream>
#include <map>
#include <random>
#include <string>

#include "engine/base/json.h"
#include "engine/model/gguf_file.h"
#include "engine/text/grammar/grammar_matcher.h"
#include "engine/text/model_tokenizer.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

constexpr int kStepsMax = 600;

// Tokens that end strings, numbers and containers; without them random walks rarely end.
bool closes(std::string_view text) {
  return text.find_first_of("\"]}") != text.npos;
}

// One walk; nothing if it did not end. A failure to go on is an error.
Result<std::optional<std::string>> walk(const std::shared_ptr<const Grammar>& grammar,
                                        std::mt19937_64& random) {
  const TokenTrie& trie = grammar->trie();
  GrammarMatcher matcher(grammar);
  std::vector<float> logits(trie.vocabulary_size());
  std::string text;
  const uint64_t patience = 1 + random() % 60;
  for (int step = 0; step < kStepsMax; ++step) {
    const bool hurried = static_cast<uint64_t>(step) > patience;
    if (matcher.must_end() || (matcher.can_end() && (hurried || random() % 4 == 0))) return text;
    const auto mask = matcher.allowed();
    if (!mask) return std::unexpected(mask.error());
    logits.assign(logits.size(), 0);
    (*mask)->apply(logits);
    std::vector<TokenId> allowed;
    std::vector<TokenId> closing;
    for (size_t index = 0; index < logits.size(); ++index) {
      if (logits[index] != 0) continue;
      const auto token = static_cast<TokenId>(index);
      allowed.push_back(token);
      if (closes(trie.text(token))) closing.push_back(token);
    }
    if (allowed.empty()) return invalid_input("nothing is allowed after {}", text);
    const bool close = !closing.empty() && (hurried || random() % 3 == 0);
    const auto& choice = close ? closing : allowed;
    const TokenId token = choice[random() % choice.size()];
    if (auto accepted = matcher.accept(token); !accepted) return std::unexpected(accepted.error());
    text += trie.text(token);
  }
  return std::nullopt;
}

ordered_json answer(const ordered_json& asked, const std::shared_ptr<const TokenTrie>& trie,
                    std::mt19937_64& random, int count) {
  static const std::map<std::string, GrammarSource::Kind> kinds = {
      {"schema", GrammarSource::Kind::kJsonSchema}, {"object", GrammarSource::Kind::kJsonObject},
      {"regex", GrammarSource::Kind::kRegex},       {"choice", GrammarSource::Kind::kChoice},
      {"gbnf", GrammarSource::Kind::kGbnf},         {"template", GrammarSource::Kind::kTemplate}};
  const auto grammar = compile_grammar({kinds.at(asked.at("kind")), asked.at("text")}, trie);
  if (!grammar) return {{"error", grammar.error().message}};
  ordered_json texts = ordered_json::array();
  for (int index = 0; index < count; ++index) {
    const auto text = walk(*grammar, random);
    if (!text) return {{"failed", text.error().message}};
    if (*text) texts.push_back(**text);
  }
  return {{"texts", texts}};
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  using namespace lockstep;
  if (count != 4) {
    std::fputs("grammar_walk MODEL SEED COUNT\n", stderr);
    return 2;
  }
  const auto file = GgufFile::open(arguments[1]);
  auto data = file ? read_tokenizer_data(*file) : std::unexpected(file.error());
  const auto tokenizer = data ? make_tokenizer(std::move(*data)) : std::unexpected(data.error());
  if (!tokenizer) {
    std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str());
    return 2;
  }
  const auto trie = std::make_shared<const TokenTrie>(**tokenizer, (*tokenizer)->vocabulary_size());
  std::mt19937_64 random(std::stoull(arguments[2]));
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << answer(ordered_json::parse(line), trie, random, std::stoi(arguments[3]))
                     .dump(-1, ' ', false, ordered_json::error_handler_t::replace)
              << std::endl;
  }
  return 0;
}
