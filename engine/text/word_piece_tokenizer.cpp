#include "engine/text/word_piece_tokenizer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/base/pause_point.h"
#include "engine/text/utf8.h"

namespace lockstep {

namespace {

constexpr std::string_view kWordMark = "\xE2\x96\x81";  // U+2581
constexpr size_t kCharactersPerPause = 64;              // some microseconds
constexpr size_t kCharacterBytesMax = 4;

std::optional<TokenId> find_text(const TokenizerData& data, std::string_view text) {
  const auto found = std::ranges::find(data.tokens, text);
  if (found == data.tokens.end()) return std::nullopt;
  return static_cast<TokenId>(found - data.tokens.begin());
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> WordPieceTokenizer::make(TokenizerData data) {
  if (!data.unknown) data.unknown = find_text(data, "[UNK]");
  if (!data.unknown) {
    return invalid_input(
        "tokenizer.ggml.unknown_token_id is missing, and there is no token '[UNK]': convert the "
        "model again.");
  }
  if (!data.bos) data.bos = data.classifier ? data.classifier : find_text(data, "[CLS]");
  if (!data.separator) data.separator = find_text(data, "[SEP]");
  // Texts end with the separator, whatever else the file calls its end.
  if (data.separator) data.eos = data.separator;
  data.add_eos = true;
  data.add_separator = false;  // it is the end token
  return std::unique_ptr<Tokenizer>(new WordPieceTokenizer(std::move(data)));
}

WordPieceTokenizer::WordPieceTokenizer(TokenizerData data) {
  adopt(std::move(data), true);
  rules_.lowers_case = data_.lowercase.value_or(true);
  rules_.strips_accents = data_.strip_accents.value_or(rules_.lowers_case);
  std::vector<std::pair<std::string_view, TokenId>> starts;
  std::vector<std::pair<std::string_view, TokenId>> continuations;
  std::vector<std::pair<std::string, TokenId>> user_defined;
  std::vector<std::pair<std::string, TokenId>> special;
  for (size_t id = 0; id < data_.tokens.size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    const std::string_view text = data_.tokens[id];
    const bool begins_word = text.starts_with(kWordMark);
    const std::string_view letters = begins_word ? text.substr(kWordMark.size()) : text;
    if (is_control(token)) {
      special.emplace_back(text, token);
      pieces_.emplace_back(text);
      continue;
    }
    if (type(token) == TokenType::kUserDefined) {
      user_defined.emplace_back(letters, token);
      special.emplace_back(letters, token);
    } else if (letters.size() > rules_.characters_max * kCharacterBytesMax) {
      // No word is as long.
    } else if (begins_word) {
      starts.emplace_back(letters, token);
    } else {
      continuations.emplace_back(letters, token);
    }
    std::string& piece = pieces_.emplace_back();
    if (begins_word) piece.push_back(' ');
    piece.append(letters);
  }
  starts_ = PrefixIndex(std::move(starts));
  continuations_ = PrefixIndex(std::move(continuations));
  split_without_special_ = SpecialTokens(std::move(user_defined));
  split_with_special_ = SpecialTokens(std::move(special));
}

void WordPieceTokenizer::encode_plain(std::string_view text, bool /*first*/, size_t tokens_max,
                                      std::vector<TokenId>& tokens) const {
  const WordPieceText::TakeWord take_word = [&](const WordPieceText::Word& word) {
    encode_word(word, tokens);
  };
  WordPieceText words(rules_, take_word);
  for (size_t count = 1; !text.empty() && tokens.size() <= tokens_max; ++count) {
    if (count % kCharactersPerPause == 0) pause_point();
    const DecodedCharacter character = decode_utf8(text);
    words.add(character.code_point);  // U+FFFD, which is removed, for bytes that are no character
    text.remove_prefix(character.size_bytes);
  }
  words.end_word();
}

void WordPieceTokenizer::encode_word(const WordPieceText::Word& word,
                                     std::vector<TokenId>& tokens) const {
  const size_t before = tokens.size();
  std::string_view rest = word.text;
  bool is_known = word.characters <= rules_.characters_max;
  while (is_known && !rest.empty()) {
    const bool begins = rest.size() == word.text.size();
    size_t longest = 0;
    TokenId token = -1;
    (begins ? starts_ : continuations_).for_each_prefix(rest, [&](size_t size_bytes, TokenId id) {
      longest = size_bytes;
      token = id;
    });
    is_known = longest > 0;
    if (is_known) tokens.push_back(token);
    rest.remove_prefix(longest);
  }
  if (is_known) return;
  tokens.resize(before);
  tokens.push_back(*data_.unknown);
}

}  // namespace lockstep
