// Any text through every kind of tokenizer: tokens in range, streams agree, and the text comes back
// where the vocabulary does not change it before.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/text/model_tokenizer.h"
#include "engine/text/text_stream.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"
#include "tests/engine/text/small_vocabularies.h"

namespace lockstep {
namespace {

struct MadeTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  bool changes_text = false;
  bool marks_spaces = false;
};

std::vector<MadeTokenizer> make_tokenizers() {
  std::vector<TokenizerData> vocabularies = {small_sentence_piece(), small_character_pair()};
  for (const char* pre : {"gpt-2", "llama-bpe", "qwen2", "smollm", "default"}) {
    vocabularies.push_back(small_byte_pair(pre));
  }
  vocabularies.push_back(small_word_piece());
  vocabularies.push_back(small_word_piece());
  vocabularies.back().lowercase = false;
  vocabularies.push_back(small_unigram(true));
  vocabularies.push_back(small_unigram(false));
  vocabularies.back().remove_extra_whitespaces = false;
  vocabularies.push_back(small_plamo());
  std::vector<MadeTokenizer> tokenizers;
  for (TokenizerData& data : vocabularies) {
    add_token(data, "<tool>", TokenType::kUserDefined);
    const bool changes_text = data.model == "bert" || data.model == "t5";
    const bool marks_spaces = data.model == "llama" || data.model == "gemma4";
    auto made = make_tokenizer(std::move(data));
    CHECK(made.has_value(), "{}", made.error().message);
    tokenizers.push_back({std::move(*made), changes_text, marks_spaces});
  }
  return tokenizers;
}

// Some vocabularies write a space and U+2581 alike.
std::string with_spaces(std::string_view text) {
  std::string result;
  for (size_t position = 0; position < text.size();) {
    const bool mark = text.substr(position).starts_with("\xE2\x96\x81");
    result.push_back(mark ? ' ' : text[position]);
    position += mark ? 3 : 1;
  }
  return result;
}

void check_round_trip(const MadeTokenizer& made, std::string_view text) {
  const Tokenizer& tokenizer = *made.tokenizer;
  const auto tokens = tokenizer.encode(text, {.add_special = false});
  for (const TokenId token : tokens) {
    CHECK(token >= 0 && static_cast<size_t>(token) < tokenizer.vocabulary_size(), "{}", token);
    CHECK(!tokenizer.ends_generation(token), "text became the end token {}", token);
  }
  const std::string expected = made.marks_spaces ? with_spaces(text) : std::string(text);
  const std::string decoded = tokenizer.decode(tokens, false);
  CHECK(made.changes_text || decoded == expected, "'{}' came back as '{}'", text, decoded);
  TextStream stream(tokenizer, true, true);
  std::string streamed;
  for (const TokenId token : tokens) streamed += stream.push(token);
  streamed += stream.finish();
  CHECK(streamed == replace_invalid_utf8(decoded), "'{}' was streamed as '{}'", text, streamed);
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto tokenizers = lockstep::make_tokenizers();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto& made : tokenizers) {
    lockstep::check_round_trip(made, text);
    made.tokenizer->encode(text, {.add_special = true, .parse_special = true});
  }
  return 0;
}
