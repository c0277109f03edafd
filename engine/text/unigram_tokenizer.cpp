#include "engine/text/unigram_tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace lockstep {

namespace {

constexpr size_t kReadBytes = 4096;  // of the normalized text at a time
// SentencePiece trains none that are longer: 512 characters.
constexpr size_t kTokenBytesMax = 2048;
// An unknown character's score lies so far below the least of all tokens'.
constexpr double kUnknownPenalty = 10;

// At each of a text's characters as many bytes may be compared, and so many places be waiting.
Result<void> check_lengths(const TokenizerData& data) {
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    if (data.tokens[id].size() <= kTokenBytesMax) continue;
    return invalid_input(
        "tokenizer.ggml.tokens[{}] has {} bytes; a token of a vocabulary of the kind 't5' may have "
        "{}.",
        id, data.tokens[id].size(), kTokenBytesMax);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> UnigramTokenizer::make(TokenizerData data) {
  if (data.scores.empty()) {
    return invalid_input(
        "tokenizer.ggml.scores is missing; a vocabulary of the kind 't5' is cut by its scores: "
        "convert the model again.");
  }
  if (!data.unknown) {
    const auto kind = std::ranges::find(data.types, static_cast<int64_t>(TokenType::kUnknown));
    const auto text = std::ranges::find(data.tokens, "<unk>");
    if (kind != data.types.end()) {
      data.unknown = static_cast<TokenId>(kind - data.types.begin());
    } else if (text != data.tokens.end()) {
      data.unknown = static_cast<TokenId>(text - data.tokens.begin());
    } else {
      return invalid_input(
          "tokenizer.ggml.unknown_token_id is missing, and there is no token '<unk>': convert the "
          "model again.");
    }
  }
  const auto end = std::ranges::find(data.tokens, "</s>");
  if (!data.eos && end != data.tokens.end()) {
    data.eos = static_cast<TokenId>(end - data.tokens.begin());
  }
  data.add_eos = data.add_eos.value_or(true);
  if (auto checked = check_lengths(data); !checked) return std::unexpected(checked.error());
  auto map = CharacterMap::make(data.character_map);
  if (!map) return std::unexpected(map.error());
  return std::unique_ptr<Tokenizer>(new UnigramTokenizer(std::move(data), std::move(*map)));
}

UnigramTokenizer::UnigramTokenizer(TokenizerData data, CharacterMap map) : map_(std::move(map)) {
  data.character_map = {};
  adopt(std::move(data), false);
  double least = std::numeric_limits<double>::max();
  std::vector<std::pair<std::string_view, TokenId>> texts;
  std::vector<std::pair<std::string, TokenId>> user_defined;
  for (size_t id = 0; id < data_.tokens.size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    const std::string& text = data_.tokens[id];
    switch (type(token)) {
      case TokenType::kByte:
        pieces_.emplace_back(1, static_cast<char>(parse_byte_token(text).value_or(0)));
        continue;
      case TokenType::kControl:
      case TokenType::kUnknown:
        pieces_.push_back(text);
        continue;
      case TokenType::kUserDefined:
        user_defined.emplace_back(mark_spaces(text), token);
        break;
      case TokenType::kNormal:
        least = std::min(least, static_cast<double>(data_.scores[id]));
        vocabulary_.text_bytes_max = std::max(vocabulary_.text_bytes_max, text.size());
        texts.emplace_back(text, token);
        break;
      case TokenType::kUnused:
        break;
    }
    pieces_.push_back(unmark_spaces(text));
  }
  rules_ = {.adds_space = data_.add_space_prefix.value_or(true),
            .merges_spaces = data_.remove_extra_whitespaces.value_or(true)};
  const bool has_all_bytes = std::ranges::all_of(byte_tokens_, [](TokenId id) { return id >= 0; });
  if (has_all_bytes) vocabulary_.bytes = byte_tokens_;
  vocabulary_.texts = data_.tokens;
  vocabulary_.scores = data_.scores;
  vocabulary_.prefixes = PrefixIndex(std::move(texts));
  vocabulary_.unknown_score = least - kUnknownPenalty;
  vocabulary_.unknown = *data_.unknown;
  user_defined_ = SpecialTokens(std::move(user_defined));
  split_with_special_ = collect_special(
      [](TokenType type) { return type == TokenType::kControl || type == TokenType::kUnknown; });
}

void UnigramTokenizer::encode_plain(std::string_view text, bool /*first*/, size_t tokens_max,
                                    std::vector<TokenId>& tokens) const {
  UnigramText normal(map_, rules_, text);
  UnigramCut cut(vocabulary_, tokens_max, tokens);
  std::string known;
  while (!normal.is_at_end() && !cut.is_full()) {
    normal.read(kReadBytes, known);
    cut_known(normal.is_at_end(), known, cut, tokens);
  }
}

void UnigramTokenizer::cut_known(bool is_whole, std::string& known, UnigramCut& cut,
                                 std::vector<TokenId>& tokens) const {
  const std::string_view text = known;
  const size_t longest = user_defined_.text_bytes_max();
  size_t position = 0;
  while (!cut.is_full()) {
    const auto match = user_defined_.find(text, position);
    if (!match || (!is_whole && match->position + longest > text.size())) break;
    cut.append(text.substr(position, match->position - position));
    cut.finish();
    tokens.push_back(match->token);
    position = match->position + match->size_bytes;
  }
  if (cut.is_full()) return;
  size_t end = text.size();
  if (!is_whole && longest > 0) end = std::max(position, end - std::min(end, longest - 1));
  cut.append(text.substr(position, end - position));
  if (is_whole) cut.finish();
  known.erase(0, end);
}

}  // namespace lockstep
