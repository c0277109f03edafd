#include "engine/text/byte_pair_tokenizer.h"

#include <array>
#include <utility>

#include "engine/base/pause_point.h"
#include "engine/text/utf8.h"
#include "engine/text/word_piece_text.h"

namespace lockstep {

namespace {

constexpr size_t kWordsPerPause = 16;        // some microseconds
constexpr size_t kCharactersPerPause = 256;  // likewise

// GPT-2's alphabet: visible characters of Latin-1 stand for themselves, the other bytes, in order,
// for the characters from U+0100 on.
constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr uint32_t kFirstOther = 0x100;
constexpr uint32_t kAlphabetEnd = kFirstOther + 68;  // 68 bytes do not stand for themselves

constexpr std::array<uint32_t, 256> make_alphabet() {
  std::array<uint32_t, 256> characters{};
  uint32_t other = kFirstOther;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    characters[byte] = stands_for_itself(byte) ? byte : other++;
  }
  return characters;
}
constexpr std::array<uint32_t, 256> kAlphabet = make_alphabet();

constexpr std::array<int16_t, kAlphabetEnd> make_bytes_of_characters() {
  std::array<int16_t, kAlphabetEnd> bytes{};
  bytes.fill(-1);
  for (size_t byte = 0; byte < 256; ++byte) bytes[kAlphabet[byte]] = static_cast<int16_t>(byte);
  return bytes;
}
constexpr std::array<int16_t, kAlphabetEnd> kBytes = make_bytes_of_characters();

// The bytes that a token's text stands for. A text that is not all in the alphabet stands for
// itself, as added tokens do.
std::string decode_alphabet(std::string_view text) {
  std::string bytes;
  for (std::string_view rest = text; !rest.empty();) {
    const DecodedCharacter character = decode_utf8(rest);
    if (!character.valid || character.code_point >= kAlphabetEnd) return std::string(text);
    const int16_t byte = kBytes[character.code_point];
    if (byte < 0) return std::string(text);
    bytes.push_back(static_cast<char>(byte));
    rest.remove_prefix(character.size_bytes);
  }
  return bytes;
}

// Bytes that are no characters stay.
std::string lower(std::string_view text) {
  std::string lowered;
  for (size_t count = 1; !text.empty(); ++count) {
    if (count % kCharactersPerPause == 0) pause_point();
    const DecodedCharacter character = decode_utf8(text);
    if (character.valid) {
      append_lower_case(character.code_point, lowered);
    } else {
      lowered.append(text.substr(0, character.size_bytes));
    }
    text.remove_prefix(character.size_bytes);
  }
  return lowered;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> BytePairTokenizer::make(TokenizerData data) {
  auto pre = PreTokenizer::make(data.model == "gpt2" ? data.pre : data.model);
  if (!pre) return std::unexpected(pre.error());
  if (pre->insists_on_bos()) data.add_bos = true;
  if (pre->adds_separator()) data.add_separator = data.add_separator.value_or(true);
  std::unique_ptr<BytePairTokenizer> tokenizer(new BytePairTokenizer(std::move(*pre)));
  const std::vector<std::string> merges = std::move(data.merges);
  tokenizer->adopt(std::move(data), tokenizer->pre_.adds_bos());
  tokenizer->fill_pieces();
  if (auto adopted = tokenizer->adopt_merges(merges); !adopted) {
    return std::unexpected(adopted.error());
  }
  if (!tokenizer->has_letters()) {
    tokenizer->find_longest_token(/*marks_spaces=*/tokenizer->has_characters());
  }
  return tokenizer;
}

std::string BytePairTokenizer::spell(std::string_view text) const {
  if (has_letters()) return std::string(text);
  return has_characters() ? unmark_spaces(text) : decode_alphabet(text);
}

bool BytePairTokenizer::spells_itself(TokenId token) const {
  const auto id = static_cast<size_t>(token);
  return !is_control(token) && pieces_[id] == spell(data_.tokens[id]);
}

void BytePairTokenizer::fill_pieces() {
  const size_t count = data_.tokens.size();
  if (pre_.ignores_merges()) whole_words_ = TokenIndex(count);
  if (has_characters()) find_byte_tokens();
  for (size_t id = 0; id < count; ++id) {
    const auto token = static_cast<TokenId>(id);
    const std::string& text = data_.tokens[id];
    switch (type(token)) {
      case TokenType::kNormal:
      case TokenType::kUnused:
        pieces_.push_back(spell(text));
        break;
      case TokenType::kByte:
        pieces_.emplace_back(1, static_cast<char>(parse_byte_token(text).value_or(0)));
        break;
      case TokenType::kControl:
      case TokenType::kUnknown:
      case TokenType::kUserDefined:
        pieces_.push_back(text);
        break;
    }
  }
  // Only now: pieces_ does not move any more.
  for (size_t id = 0; pre_.ignores_merges() && id < count; ++id) {
    const auto token = static_cast<TokenId>(id);
    if (type(token) == TokenType::kNormal) whole_words_.insert(pieces_[id], token);
  }
  if (has_characters() || has_letters()) {
    find_characters();
  } else {
    find_byte_letters();
  }
  split_without_special_ =
      collect_special([](TokenType type) { return type == TokenType::kUserDefined; });
  split_with_special_ = collect_special([](TokenType type) {
    return type == TokenType::kUserDefined || type == TokenType::kControl ||
           type == TokenType::kUnknown;
  });
}

void BytePairTokenizer::find_byte_letters() {
  for (size_t byte = 0; byte < 256; ++byte) {
    std::string character;
    append_utf8(kAlphabet[byte], character);
    const TokenId token = index_.find(character);
    if (token >= 0 && spells_itself(token)) byte_tokens_[byte] = token;
  }
}

// Some files call them normal.
void BytePairTokenizer::find_byte_tokens() {
  for (size_t id = 0; id < data_.tokens.size(); ++id) {
    const std::optional<uint8_t> byte = parse_byte_token(data_.tokens[id]);
    if (!byte || types_[id] != TokenType::kNormal) continue;
    types_[id] = TokenType::kByte;
    if (byte_tokens_[*byte] < 0) byte_tokens_[*byte] = static_cast<TokenId>(id);
  }
}

void BytePairTokenizer::find_characters() {
  std::vector<std::pair<std::string_view, TokenId>> found;
  for (size_t id = 0; id < data_.tokens.size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    const std::string_view text = data_.tokens[id];
    const bool is_one = !text.empty() && decode_utf8(text).size_bytes == text.size();
    if (!is_one || text == " " || index_.find(text) != token || !spells_itself(token)) continue;
    found.emplace_back(text, token);
    if (text == kSpaceMark && has_characters()) found.emplace_back(" ", token);
  }
  characters_ = TokenIndex(found.size());
  for (const auto& [text, token] : found) characters_.insert(text, token);
}

Result<void> BytePairTokenizer::adopt_merges(const std::vector<std::string>& merges) {
  merges_ = MergeIndex(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string& merge = merges[rank];
    // A part may begin with a space of its own, but not hold one further on.
    const size_t space = merge.find(' ', 1);
    if (space == std::string::npos || space + 1 == merge.size()) {
      return invalid_input(
          "tokenizer.ggml.merges[{}] is '{}'; a merge is two tokens with a space between them.",
          rank, quote_token(merge));
    }
    const std::string left = merge.substr(0, space);
    const std::string right = merge.substr(space + 1);
    const TokenId left_token = index_.find(left);
    const TokenId right_token = index_.find(right);
    const TokenId merged = index_.find(left + right);
    if (left_token < 0 || right_token < 0 || merged < 0) {
      const std::string& missing = left_token < 0 ? left : right_token < 0 ? right : left + right;
      return invalid_input(
          "tokenizer.ggml.merges[{}] is '{}', but '{}' is no token; merges and tokens must come "
          "from the same vocabulary.",
          rank, quote_token(merge), quote_token(missing));
    }
    // Ordinary text must never become a token that means something else, whatever the merges say.
    if (!spells_itself(merged)) continue;
    if (type(left_token) == TokenType::kByte || type(right_token) == TokenType::kByte) continue;
    merges_.insert(left_token, right_token, {static_cast<uint32_t>(rank), merged});
  }
  return {};
}

void BytePairTokenizer::encode_plain(std::string_view text, bool /*first*/, size_t tokens_max,
                                     std::vector<TokenId>& tokens) const {
  std::string lowered;
  if (has_letters() && data_.lowercase.value_or(false)) {
    lowered = lower(text);
    text = lowered;
  }
  std::vector<std::string_view> words;
  pre_.split(text, words);
  PairMerging merging;
  size_t count = 0;
  for (const std::string_view word : words) {
    if (tokens.size() > tokens_max) return;
    if (++count % kWordsPerPause == 0) pause_point();
    encode_word(word, merging, tokens);
  }
}

void BytePairTokenizer::encode_word(std::string_view word, PairMerging& merging,
                                    std::vector<TokenId>& tokens) const {
  if (const TokenId token = whole_words_.find(word); token >= 0) {
    tokens.push_back(token);
    return;
  }
  merging.clear();
  for (size_t index = 0; index < word.size();) {
    const bool is_byte = pre_.alphabet() == TokenAlphabet::kBytes;
    const auto size_bytes =
        static_cast<uint32_t>(is_byte ? 1 : decode_utf8(word.substr(index)).size_bytes);
    const TokenId token = characters_.find(word.substr(index, size_bytes));
    if (token >= 0 || has_letters()) {
      merging.append(static_cast<uint32_t>(index), size_bytes, token);
      index += size_bytes;
      continue;
    }
    for (uint32_t byte = 0; byte < size_bytes; ++byte) {
      merging.append(static_cast<uint32_t>(index + byte), 1,
                     byte_tokens_[static_cast<uint8_t>(word[index + byte])]);
    }
    index += size_bytes;
  }
  merging.run([this](const MergeSymbol& left,
                     const MergeSymbol& right) -> std::optional<PairMerging::Candidate> {
    if (left.token < 0 || right.token < 0) return std::nullopt;
    const MergeIndex::Merge merge = merges_.find(left.token, right.token);
    if (merge.token < 0) return std::nullopt;
    return PairMerging::Candidate{merge.rank, merge.token};
  });
  for (const MergeSymbol& symbol : merging.symbols()) {
    if (symbol.size_bytes == 0) continue;
    // A vocabulary that lacks a byte has no other way to write it than the unknown token.
    const TokenId token = symbol.token >= 0 ? symbol.token : data_.unknown.value_or(-1);
    if (token >= 0) tokens.push_back(token);
  }
}

}  // namespace lockstep
