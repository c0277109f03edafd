#include "tests/engine/text/straightforward_unigram.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/check.h"
#include "engine/text/character_map.h"
#include "engine/text/utf8.h"

namespace lockstep {
namespace {

bool has_type(const TokenizerData& data, size_t id, TokenType type) {
  return data.types[id] == static_cast<int64_t>(type);
}

std::string normalize(const TokenizerData& data, std::string_view text) {
  const auto map = CharacterMap::make(data.character_map);
  CHECK(map.has_value(), "{}", map.error().message);
  const bool adds_space = *data.add_space_prefix;
  const bool merges_spaces = *data.remove_extra_whitespaces;
  std::string normal;
  if (adds_space && !merges_spaces && !text.empty()) normal.append(kSpaceMark);
  std::string replaced;
  while (!text.empty()) {
    const auto found = map->find(text);
    const DecodedCharacter character = decode_utf8(text);
    const size_t size = found ? found->size_bytes : character.valid ? character.size_bytes : 1;
    replaced.append(found             ? found->text
                    : character.valid ? text.substr(0, size)
                                      : std::string_view("\uFFFD"));
    text.remove_prefix(size);
  }
  for (const char letter : replaced) {
    const bool is_space = letter == ' ';
    const bool follows_space = normal.empty() || normal.ends_with('\x01');
    if (is_space && follows_space && merges_spaces) continue;
    if (normal.empty() && adds_space) normal.append(kSpaceMark);
    if (is_space && merges_spaces) {
      normal.push_back('\x01');  // for a while, as other marks are no spaces
    } else {
      normal.append(is_space ? kSpaceMark : std::string_view(&letter, 1));
    }
  }
  std::string marked;
  for (const char letter : normal) {
    marked.append(letter == '\x01' ? kSpaceMark : std::string_view(&letter, 1));
  }
  while (merges_spaces && marked.ends_with(kSpaceMark)) {
    marked.resize(marked.size() - kSpaceMark.size());
  }
  return marked;
}

// The tokens of a text without user-defined ones.
void cut(const TokenizerData& data, std::string_view text, std::vector<TokenId>& tokens) {
  struct Arrival {
    double score = 0;
    size_t begin = 0;
    std::optional<TokenId> token = std::nullopt;
    bool is_reached = false;
  };
  std::map<std::pair<size_t, std::string_view>, TokenId> known;  // the shortest first
  double least = std::numeric_limits<double>::max();
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    if (!has_type(data, id, TokenType::kNormal)) continue;
    least = std::min(least, static_cast<double>(data.scores[id]));
    const std::string_view token = data.tokens[id];
    known.emplace(std::pair(token.size(), token), static_cast<TokenId>(id));
  }
  std::vector<Arrival> arrivals(text.size() + 1);
  arrivals[0].is_reached = true;
  for (size_t begin = 0; begin < text.size();) {
    const auto offer = [&](size_t size, std::optional<TokenId> token, double added) {
      Arrival& best = arrivals[begin + size];
      const double score = arrivals[begin].score + added;
      if (!best.is_reached || score > best.score) best = {score, begin, token, true};
    };
    const size_t character = decode_utf8(text.substr(begin)).size_bytes;
    bool has_character = false;
    for (const auto& [key, token] : known) {
      if (!text.substr(begin).starts_with(key.second)) continue;
      has_character = has_character || key.first == character;
      offer(key.first, token, static_cast<double>(data.scores[static_cast<size_t>(token)]));
    }
    if (!has_character) offer(character, std::nullopt, least - 10);
    begin += character;
  }
  std::vector<size_t> ends;
  for (size_t end = text.size(); end > 0; end = arrivals[end].begin) ends.push_back(end);
  std::ranges::reverse(ends);
  const auto byte = std::ranges::find(data.types, static_cast<int64_t>(TokenType::kByte));
  bool follows_unknown = false;
  for (const size_t end : ends) {
    const auto& [score, begin, token, is_reached] = arrivals[end];
    if (token) {
      tokens.push_back(*token);
    } else if (byte == data.types.end()) {
      if (!follows_unknown) tokens.push_back(*data.unknown);
    } else {
      for (const char part : text.substr(begin, end - begin)) {
        tokens.push_back(static_cast<TokenId>(byte - data.types.begin()) +
                         static_cast<uint8_t>(part));
      }
    }
    follows_unknown = !token;
  }
}

}  // namespace

std::vector<TokenId> straightforward_unigrams(const TokenizerData& data, std::string_view text) {
  const std::string normal = normalize(data, text);
  std::map<std::string, TokenId> user_defined;
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    if (!has_type(data, id, TokenType::kUserDefined)) continue;
    user_defined.emplace(mark_spaces(data.tokens[id]), static_cast<TokenId>(id));
  }
  std::vector<TokenId> tokens;
  size_t begin = 0;  // of what is still to be cut
  for (size_t place = 0; place < normal.size();) {
    size_t longest = 0;
    TokenId token = 0;
    for (const auto& [marked, id] : user_defined) {
      const std::string_view rest = std::string_view(normal).substr(place);
      if (marked.size() <= longest || !rest.starts_with(marked)) continue;
      longest = marked.size();
      token = id;
    }
    if (longest == 0) {
      ++place;
      continue;
    }
    cut(data, std::string_view(normal).substr(begin, place - begin), tokens);
    tokens.push_back(token);
    begin = place += longest;
  }
  cut(data, std::string_view(normal).substr(begin), tokens);
  return tokens;
}

}  // namespace lockstep
