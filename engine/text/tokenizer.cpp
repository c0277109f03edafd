#include "engine/text/tokenizer.h"

#include <algorithm>
#include <array>

#include "engine/base/pause_point.h"

namespace lockstep {

namespace {

// Control tokens that end a turn or a text in the families of models that we know, beside those
// that a file names: chat models often stop with another than their file's eos.
constexpr std::array<std::string_view, 12> kEndTexts = {
    "<|im_end|>",      "<|eot_id|>", "<|end_of_text|>", "<|end|>",
    "<end_of_turn>",   "</s>",       "<|eom_id|>",      "<|endoftext|>",
    "<|end_of_turn|>", "<eos>",      "<turn|>",         "<|tool_response>"};

// How the marks of families are written whose files call them user-defined: ChatML and its kin,
// DeepSeek (fullwidth bars), EXAONE, Gemma, SentencePiece's own.
using Bounds = std::pair<std::string_view, std::string_view>;
constexpr std::array<Bounds, 6> kMarkBounds = {{{"<|", "|>"},
                                                {"<｜", "｜>"},
                                                {"[|", "|]"},
                                                {"<start_of_", ">"},
                                                {"<end_of_", ">"},
                                                {"<extra_id_", ">"}}};

constexpr std::string_view kTrimmed = " \t\n\v\f\r";

bool strips(const std::vector<TokenId>& tokens, TokenId token) {
  return std::ranges::binary_search(tokens, token);
}

}  // namespace

void Tokenizer::adopt(TokenizerData data, bool adds_bos_by_default) {
  data_ = std::move(data);
  data_.merges = {};
  const size_t count = data_.tokens.size();
  types_.assign(count, TokenType::kNormal);
  index_ = TokenIndex(count);
  for (size_t id = 0; id < count; ++id) {
    const std::string& text = data_.tokens[id];
    const auto token = static_cast<TokenId>(id);
    index_.insert(text, token);
    const std::optional<uint8_t> byte = parse_byte_token(text);
    if (!data_.types.empty()) {
      types_[id] = static_cast<TokenType>(data_.types[id]);
    } else if (byte && data_.model == "llama") {
      types_[id] = TokenType::kByte;
    }
    if (types_[id] == TokenType::kByte && byte && byte_tokens_[*byte] < 0) {
      byte_tokens_[*byte] = token;
    }
  }
  if (data_.types.empty()) {
    for (const auto& id : {data_.bos, data_.eos, data_.eot, data_.eom}) {
      if (id) types_[static_cast<size_t>(*id)] = TokenType::kControl;
    }
    if (data_.unknown) types_[static_cast<size_t>(*data_.unknown)] = TokenType::kUnknown;
  }
  bos_ = data_.bos;
  eos_ = data_.eos;
  adds_bos_ = bos_ && data_.add_bos.value_or(adds_bos_by_default);
  adds_eos_ = eos_ && data_.add_eos.value_or(false);
  adds_separator_ = data_.separator && data_.add_separator.value_or(false);
  find_end_tokens();
}

// A token is found as it is written in the file ("▁" for a space) or by the bytes of its letters.
void Tokenizer::find_longest_token(bool marks_spaces) {
  const bool has_all_bytes = std::ranges::all_of(byte_tokens_, [](TokenId id) { return id >= 0; });
  if (data_.remove_extra_whitespaces.value_or(false)) return;
  if (!has_all_bytes && !data_.unknown) return;
  if (!data_.strip_left.empty() || !data_.strip_right.empty()) return;
  token_bytes_max_ = 4;  // a character that is unknown
  for (size_t id = 0; id < pieces_.size(); ++id) {
    token_bytes_max_ = std::max(token_bytes_max_, pieces_[id].size());
    if (marks_spaces) token_bytes_max_ = std::max(token_bytes_max_, data_.tokens[id].size());
  }
}

size_t Tokenizer::least_tokens(size_t text_bytes) const {
  return token_bytes_max_ == 0 ? 0 : (text_bytes + token_bytes_max_ - 1) / token_bytes_max_;
}

void Tokenizer::find_end_tokens() {
  for (const auto& id : {data_.eos, data_.eot, data_.eom}) {
    if (id) end_tokens_.push_back(*id);
  }
  for (const std::string_view text : kEndTexts) {
    const TokenId token = index_.find(text);
    if (token < 0) continue;
    // Some files call them the user's own: text that nobody would see the end of an answer in.
    if (type(token) == TokenType::kUserDefined) {
      types_[static_cast<size_t>(token)] = TokenType::kControl;
    }
    if (type(token) == TokenType::kControl) end_tokens_.push_back(token);
  }
  find_message_ends();
  std::sort(end_tokens_.begin(), end_tokens_.end());
  end_tokens_.erase(std::unique(end_tokens_.begin(), end_tokens_.end()), end_tokens_.end());
}

// A turn that is made of messages does not end with each of them: it ends with the token that
// returns the answer, or with the one that calls.
void Tokenizer::find_message_ends() {
  const TokenId message_end = index_.find("<|end|>");
  const TokenId turn_ends[] = {index_.find("<|return|>"), index_.find("<|call|>")};
  const auto is_control_token = [this](TokenId id) {
    return id >= 0 && type(id) == TokenType::kControl;
  };
  if (message_end < 0 || !std::ranges::all_of(turn_ends, is_control_token)) return;
  std::erase(end_tokens_, message_end);
  end_tokens_.insert(end_tokens_.end(), std::begin(turn_ends), std::end(turn_ends));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<TokenId> tokens;
  if (options.add_special && adds_bos_) tokens.push_back(*bos_);
  const SpecialTokens& special =
      options.parse_special ? split_with_special_ : split_without_special_;
  // A mark that begins before a foreign range and ends behind it holds some of it, too.
  const auto is_own = [&](const SpecialTokens::Match& match) {
    return !is_mark(match.token) ||
           !overlaps(options.foreign, {match.position, match.position + match.size_bytes}) ||
           std::ranges::binary_search(options.foreign_marks, match.token);
  };
  const SpecialTokens::Accepts accepts =
      options.foreign.empty() ? SpecialTokens::Accepts() : SpecialTokens::Accepts(is_own);
  size_t position = 0;
  while (position < text.size() && tokens.size() <= options.tokens_max) {
    const auto match = special.find(text, position, accepts);
    const size_t end = match ? match->position : text.size();
    std::string_view slice = text.substr(position, end - position);
    if (match && strips(data_.strip_left, match->token)) {
      slice = slice.substr(0, slice.find_last_not_of(kTrimmed) + 1);
    }
    encode_slice(slice, true, options.tokens_max, tokens);
    pause_point();
    if (match) tokens.push_back(match->token);
    position = match ? end + match->size_bytes : end;
    if (match && strips(data_.strip_right, match->token)) {
      position = std::min(text.find_first_not_of(kTrimmed, position), text.size());
    }
  }
  if (options.add_special && adds_eos_) tokens.push_back(*eos_);
  return tokens;
}

size_t Tokenizer::encode_pair(std::string_view first, std::string_view second, size_t tokens_max,
                              std::vector<TokenId>& tokens) const {
  const auto add = [&](std::string_view text) {
    const auto encoded = encode(text, {.add_special = false, .tokens_max = tokens_max});
    tokens.insert(tokens.end(), encoded.begin(), encoded.end());
    if (adds_eos_) tokens.push_back(*eos_);
  };
  if (adds_bos_) tokens.push_back(*bos_);
  add(first);
  if (adds_separator_) tokens.push_back(*data_.separator);
  const size_t begin = tokens.size();
  add(second);
  return begin;
}

void Tokenizer::encode_slice(std::string_view text, bool first, size_t tokens_max,
                             std::vector<TokenId>& tokens) const {
  while (!text.empty()) {
    const std::string_view slice = text.substr(0, kSliceBytesMax);
    encode_plain(slice, first, tokens_max, tokens);
    text.remove_prefix(slice.size());
    first = false;
  }
}

std::string_view Tokenizer::piece(TokenId token, bool special) const {
  if (token < 0 || static_cast<size_t>(token) >= pieces_.size()) return {};
  if (!special && is_control(token)) return {};
  return pieces_[static_cast<size_t>(token)];
}

std::string Tokenizer::decode(std::span<const TokenId> tokens, bool special) const {
  std::string text;
  bool strip = strips_leading_space();
  for (const TokenId token : tokens) {
    std::string_view bytes = piece(token, special);
    if (strip && !piece(token, false).empty()) {
      if (bytes.starts_with(' ')) bytes.remove_prefix(1);
      strip = false;
    }
    text.append(bytes);
  }
  return text;
}

bool Tokenizer::strips_leading_space() const {
  if (data_.model == "bert") return true;
  const bool is_sentence_piece = data_.model == "llama" || data_.model == "t5";
  return is_sentence_piece && data_.add_space_prefix.value_or(true);
}

bool Tokenizer::is_mark(TokenId token) const {
  if (token < 0 || static_cast<size_t>(token) >= types_.size()) return false;
  if (is_control(token) || ends_generation(token)) return true;
  if (type(token) != TokenType::kUserDefined) return false;
  const std::string_view text = token_text(token);
  return std::ranges::any_of(kMarkBounds, [&](const auto& bounds) {
    return text.starts_with(bounds.first) && text.ends_with(bounds.second);
  });
}

bool Tokenizer::ends_generation(TokenId token) const {
  return std::binary_search(end_tokens_.begin(), end_tokens_.end(), token);
}

std::optional<TokenId> Tokenizer::find(std::string_view token_text) const {
  const TokenId token = index_.find(token_text);
  return token >= 0 ? std::optional(token) : std::nullopt;
}

std::string_view Tokenizer::token_text(TokenId token) const {
  if (token < 0 || static_cast<size_t>(token) >= data_.tokens.size()) return {};
  return data_.tokens[static_cast<size_t>(token)];
}

}  // namespace lockstep
