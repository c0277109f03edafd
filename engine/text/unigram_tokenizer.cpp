#include "engine/text/unigram_tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/pause_point.h"
#include "engine/text/utf8.h"

namespace lockstep {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr size_t kCharactersPerPause = 32;                 // some microseconds
// An unknown character's score lies so far below the least of all tokens'.
constexpr double kUnknownPenalty = 10;

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
        texts.emplace_back(text, token);
        break;
      case TokenType::kUnused:
        break;
    }
    pieces_.push_back(unmark_spaces(text));
  }
  unknown_score_ = least - kUnknownPenalty;
  has_all_bytes_ = std::ranges::all_of(byte_tokens_, [](TokenId id) { return id >= 0; });
  index_of_prefixes_ = PrefixIndex(std::move(texts));
  user_defined_ = SpecialTokens(std::move(user_defined));
  split_with_special_ = collect_special(
      [](TokenType type) { return type == TokenType::kControl || type == TokenType::kUnknown; });
}

void UnigramTokenizer::encode_plain(std::string_view text, bool /*first*/, size_t tokens_max,
                                    std::vector<TokenId>& tokens) const {
  const std::string normal = normalize(text);
  size_t position = 0;
  while (position < normal.size() && tokens.size() <= tokens_max) {
    const auto match = user_defined_.find(normal, position);
    const size_t end = match ? match->position : normal.size();
    cut(std::string_view(normal).substr(position, end - position), tokens);
    if (match) tokens.push_back(match->token);
    position = match ? end + match->size_bytes : end;
  }
}

// Spaces are written as marks: one before the text, and of those that follow one another, or end
// the text, only the first where the model wants it so.
std::string UnigramTokenizer::normalize(std::string_view text) const {
  const bool adds_space = data_.add_space_prefix.value_or(true);
  const bool merges_spaces = data_.remove_extra_whitespaces.value_or(true);
  std::string result;
  result.reserve(text.size() + kSpaceMark.size());
  if (adds_space && !merges_spaces && !text.empty()) result.append(kSpaceMark);
  bool follows_space = merges_spaces;
  const auto append = [&](std::string_view part) {
    for (const char character : part) {
      const bool is_space = character == ' ';
      if (is_space && follows_space) continue;
      if (result.empty() && adds_space) result.append(kSpaceMark);
      if (is_space) {
        result.append(kSpaceMark);
      } else {
        result.push_back(character);
      }
      follows_space = is_space && merges_spaces;
    }
  };
  for (size_t count = 1; !text.empty(); ++count) {
    if (count % kCharactersPerPause == 0) pause_point();
    size_t size_bytes = 1;
    if (const auto replaced = map_.find(text)) {
      append(replaced->text);
      size_bytes = replaced->size_bytes;
    } else if (const DecodedCharacter character = decode_utf8(text); character.valid) {
      append(text.substr(0, character.size_bytes));
      size_bytes = character.size_bytes;
    } else {
      append(kReplacement);
    }
    text.remove_prefix(size_bytes);
  }
  while (merges_spaces && result.ends_with(kSpaceMark)) {
    result.resize(result.size() - kSpaceMark.size());
  }
  return result;
}

void UnigramTokenizer::find_arrivals(std::string_view text, std::vector<Arrival>& arrivals) const {
  arrivals.assign(text.size() + 1, {});
  arrivals[0].token = kNoToken;
  size_t count = 1;
  for (size_t begin = 0; begin < text.size(); ++count) {
    if (count % kCharactersPerPause == 0) pause_point();
    const double score = arrivals[begin].score;
    const auto offer = [&](size_t size_bytes, TokenId token, double added) {
      Arrival& best = arrivals[begin + size_bytes];
      if (best.token != kNotReached && !(score + added > best.score)) return;
      best = {score + added, static_cast<uint32_t>(begin), token};
    };
    const size_t character = decode_utf8(text.substr(begin)).size_bytes;
    bool has_character = false;
    index_of_prefixes_.for_each_prefix(text.substr(begin), [&](size_t size_bytes, TokenId token) {
      has_character = has_character || size_bytes == character;
      offer(size_bytes, token, static_cast<double>(data_.scores[static_cast<size_t>(token)]));
    });
    if (!has_character) offer(character, kNoToken, unknown_score_);
    begin += character;
  }
}

void UnigramTokenizer::cut(std::string_view text, std::vector<TokenId>& tokens) const {
  if (text.empty()) return;
  std::vector<Arrival> arrivals;
  find_arrivals(text, arrivals);
  // The places where the best way's tokens end, the last first.
  std::vector<size_t> ends;
  for (size_t end = text.size(); end > 0; end = arrivals[end].begin) ends.push_back(end);
  bool follows_unknown = false;
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    const Arrival& arrival = arrivals[*end];
    const bool is_unknown = arrival.token == kNoToken;
    if (is_unknown) {
      emit_unknown(text.substr(arrival.begin, *end - arrival.begin), follows_unknown, tokens);
    } else {
      tokens.push_back(arrival.token);
    }
    follows_unknown = is_unknown;
  }
}

// Unknown characters beside each other are one unknown token.
void UnigramTokenizer::emit_unknown(std::string_view text, bool follows_unknown,
                                    std::vector<TokenId>& tokens) const {
  if (!has_all_bytes_) {
    if (!follows_unknown) tokens.push_back(*data_.unknown);
    return;
  }
  for (const char byte : text) tokens.push_back(byte_tokens_[static_cast<uint8_t>(byte)]);
}

}  // namespace lockstep
