#include "engine/text/plamo_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "engine/text/utf8.h"

namespace lockstep {

namespace {

constexpr int64_t kUnknownCost = 10'000'000;
// A token that costs as much is never taken.
constexpr int64_t kLeastUnusedCost = 20'000'000;
constexpr size_t kPlamoTokenBytesMax = 2048;  // published vocabularies' are shorter than 100

std::optional<int64_t> cost_of(float score) {
  const double units = std::round(static_cast<double>(score) * 1e4);
  const bool is_used = units > -static_cast<double>(kLeastUnusedCost) && units < 1e9;
  return is_used ? std::optional(-static_cast<int64_t>(units)) : std::nullopt;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> PlamoTokenizer::make(TokenizerData data) {
  if (data.scores.empty() || data.types.empty()) {
    return invalid_input(
        "tokenizer.ggml.scores or token_type is missing; a vocabulary of the kind 'plamo2' is cut "
        "by its scores, and has tokens of single bytes: convert the model again.");
  }
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    if (data.tokens[id].size() <= kPlamoTokenBytesMax) continue;
    return invalid_input(
        "tokenizer.ggml.tokens[{}] has {} bytes; a token of a vocabulary of the kind 'plamo2' may "
        "have {}.",
        id, data.tokens[id].size(), kPlamoTokenBytesMax);
  }
  auto tokenizer = std::unique_ptr<PlamoTokenizer>(new PlamoTokenizer(std::move(data)));
  const auto& bytes = tokenizer->byte_tokens_;
  const auto missing = std::ranges::find_if(bytes, [](TokenId id) { return id < 0; });
  if (missing != bytes.end()) {
    return invalid_input(
        "tokenizer.ggml.tokens has no token of the byte {}; a vocabulary of the kind 'plamo2' has "
        "all of them: convert the model again.",
        missing - bytes.begin());
  }
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

PlamoTokenizer::PlamoTokenizer(TokenizerData data) {
  adopt(std::move(data), /*adds_bos_by_default=*/false);
  std::vector<std::pair<std::string_view, TokenId>> texts;
  costs_.resize(data_.tokens.size());
  for (size_t id = 0; id < data_.tokens.size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    const std::string& text = data_.tokens[id];
    if (type(token) == TokenType::kByte) {
      pieces_.emplace_back(1, static_cast<char>(parse_byte_token(text).value_or(0)));
      continue;
    }
    pieces_.push_back(text);
    const auto cost = cost_of(data_.scores[id]);
    if (type(token) != TokenType::kNormal || !cost) continue;
    costs_[id] = *cost;
    longest_ = std::max(longest_, text.size());
    texts.emplace_back(text, token);
  }
  prefixes_ = PrefixIndex(std::move(texts));
  split_with_special_ = collect_special([](TokenType type) {
    return type == TokenType::kControl || type == TokenType::kUnknown ||
           type == TokenType::kUserDefined;
  });
  split_without_special_ =
      collect_special([](TokenType type) { return type == TokenType::kUserDefined; });
  find_longest_token(/*marks_spaces=*/false);
}

// By byte of the text.
std::vector<PlamoTokenizer::Cut> PlamoTokenizer::find_cuts(std::string_view text) const {
  std::vector<Cut> cuts(text.size() + 1);
  for (size_t place = 0; place < text.size(); place += cuts[place].size_bytes) {
    cuts[place].size_bytes = static_cast<uint32_t>(decode_utf8(text.substr(place)).size_bytes);
  }
  for (size_t place = text.size(); place-- > 0;) {
    Cut& best = cuts[place];
    if (best.size_bytes == 0) continue;
    best.cost = cuts[place + best.size_bytes].cost + kUnknownCost;
    // The longest is offered last, and is taken where it is as good.
    prefixes_.for_each_prefix(text.substr(place), [&](size_t size_bytes, TokenId token) {
      const Cut& rest = cuts[place + size_bytes];
      if (rest.size_bytes == 0 && place + size_bytes < text.size()) return;
      const int64_t cost = rest.cost + costs_[static_cast<size_t>(token)];
      if (cost <= best.cost) best = {cost, token, static_cast<uint32_t>(size_bytes)};
    });
  }
  return cuts;
}

// No more of a text is read than makes more tokens than are wanted, whatever they are.
void PlamoTokenizer::encode_plain(std::string_view text, bool /*first*/, size_t tokens_max,
                                  std::vector<TokenId>& tokens) const {
  if (tokens_max < text.size() / longest_) text = text.substr(0, (tokens_max + 1) * longest_);
  const std::vector<Cut> cuts = find_cuts(text);
  for (size_t place = 0; place < text.size() && tokens.size() <= tokens_max;) {
    const Cut& cut = cuts[place];
    if (cut.token >= 0) {
      tokens.push_back(cut.token);
    } else {
      for (const char byte : text.substr(place, cut.size_bytes)) {
        tokens.push_back(byte_tokens_[static_cast<uint8_t>(byte)]);
      }
    }
    place += cut.size_bytes;
  }
}

}  // namespace lockstep
