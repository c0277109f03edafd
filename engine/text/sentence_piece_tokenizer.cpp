#include "engine/text/sentence_piece_tokenizer.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "engine/text/utf8.h"

namespace lockstep {

namespace {

// A number that is lower the higher the score, with no two scores alike that are not equal.
uint32_t priority_of(float score) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0F);  // -0 becomes +0
  const bool negative = (bits & 0x80000000U) != 0;
  return negative ? bits : ~(bits | 0x80000000U);
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> SentencePieceTokenizer::make(TokenizerData data) {
  if (data.scores.empty()) {
    return invalid_input(
        "tokenizer.ggml.scores is missing; a vocabulary of the kind 'llama' merges by its scores: "
        "convert the model again.");
  }
  return std::unique_ptr<Tokenizer>(new SentencePieceTokenizer(std::move(data)));
}

SentencePieceTokenizer::SentencePieceTokenizer(TokenizerData data) {
  // The ids that SentencePiece gives these tokens by default, where the file is silent.
  const auto is_text = [&data](TokenId token, std::string_view text) {
    return static_cast<size_t>(token) < data.tokens.size() &&
           data.tokens[static_cast<size_t>(token)] == text;
  };
  if (!data.unknown && is_text(0, "<unk>")) data.unknown = 0;
  if (!data.bos && is_text(1, "<s>")) data.bos = 1;
  if (!data.eos && is_text(2, "</s>")) data.eos = 2;
  adopt(std::move(data), true);

  const size_t count = data_.tokens.size();
  mergeable_ = TokenIndex(count);
  std::vector<std::pair<std::string, TokenId>> user_defined;
  for (size_t id = 0; id < count; ++id) {
    const auto token = static_cast<TokenId>(id);
    const std::string& text = data_.tokens[id];
    priorities_.push_back(priority_of(data_.scores[id]));
    if (type(token) == TokenType::kByte) {
      pieces_.emplace_back(1, static_cast<char>(parse_byte_token(text).value_or(0)));
      continue;
    }
    if (is_control(token)) {
      pieces_.push_back(text);
      continue;
    }
    pieces_.push_back(unmark_spaces(text));
    if (type(token) == TokenType::kUserDefined) user_defined.emplace_back(pieces_[id], token);
    mergeable_.insert(text, token);
  }
  user_defined_ = SpecialTokens(std::move(user_defined));
  split_with_special_ = collect_special(
      [](TokenType type) { return type == TokenType::kControl || type == TokenType::kUnknown; });
  find_longest_token(/*marks_spaces=*/true);
}

void SentencePieceTokenizer::encode_plain(std::string_view text, bool first, size_t tokens_max,
                                          std::vector<TokenId>& tokens) const {
  const std::string normal = normalize(text, first);
  size_t position = 0;
  while (position < normal.size() && tokens.size() <= tokens_max) {
    const auto match = user_defined_.find(normal, position);
    const size_t end = match ? match->position : normal.size();
    const std::string_view slice = std::string_view(normal).substr(position, end - position);
    merge_slice(mark_spaces(slice), tokens);
    if (match) tokens.push_back(match->token);
    position = match ? end + match->size_bytes : end;
  }
}

std::string SentencePieceTokenizer::normalize(std::string_view text, bool first) const {
  std::string result;
  result.reserve(text.size() + 1);
  if (first && strips_leading_space()) result.push_back(' ');
  if (!data_.remove_extra_whitespaces.value_or(false)) return result.append(text);
  const size_t begin = std::min(text.find_first_not_of(' '), text.size());
  const size_t end = text.find_last_not_of(' ') + 1;
  for (size_t index = begin; index < end; ++index) {
    if (text[index] != ' ' || text[index - 1] != ' ') result.push_back(text[index]);
  }
  return begin < end ? result : std::string();
}

void SentencePieceTokenizer::merge_slice(std::string_view text,
                                         std::vector<TokenId>& tokens) const {
  PairMerging merging;
  for (size_t position = 0; position < text.size();) {
    const size_t size_bytes = decode_utf8(text.substr(position)).size_bytes;
    merging.append(static_cast<uint32_t>(position), static_cast<uint32_t>(size_bytes), -1);
    position += size_bytes;
  }
  UnusedParts unused;
  merging.run([&](const MergeSymbol& left,
                  const MergeSymbol& right) -> std::optional<PairMerging::Candidate> {
    const size_t size_bytes = size_t{left.size_bytes} + right.size_bytes;
    const TokenId token = mergeable_.find(text.substr(left.begin, size_bytes));
    if (token < 0) return std::nullopt;
    if (type(token) == TokenType::kUnused) unused[token] = left.size_bytes;
    return PairMerging::Candidate{priorities_[static_cast<size_t>(token)], token};
  });
  for (const MergeSymbol& symbol : merging.symbols()) {
    if (symbol.size_bytes == 0) continue;
    if (symbol.token >= 0 && unused.empty()) {
      tokens.push_back(symbol.token);
    } else {
      emit(text.substr(symbol.begin, symbol.size_bytes), unused, tokens);
    }
  }
}

void SentencePieceTokenizer::emit(std::string_view symbol, const UnusedParts& unused,
                                  std::vector<TokenId>& tokens) const {
  std::vector<std::string_view> waiting = {symbol};
  while (!waiting.empty()) {
    const std::string_view part = waiting.back();
    waiting.pop_back();
    const TokenId token = mergeable_.find(part);
    const auto parts = unused.find(token);
    if (token < 0) {
      emit_bytes(part, tokens);
    } else if (parts == unused.end()) {
      tokens.push_back(token);
    } else {
      waiting.push_back(part.substr(parts->second));
      waiting.push_back(part.substr(0, parts->second));
    }
  }
}

void SentencePieceTokenizer::emit_bytes(std::string_view symbol,
                                        std::vector<TokenId>& tokens) const {
  // A vocabulary without the mark itself still has the byte of the space it stands for.
  if (symbol == kSpaceMark) symbol = " ";
  bool unknown = false;
  for (const char character : symbol) {
    const TokenId token = byte_tokens_[static_cast<uint8_t>(character)];
    if (token >= 0) {
      tokens.push_back(token);
    } else {
      unknown = true;
    }
  }
  if (unknown && data_.unknown) tokens.push_back(*data_.unknown);
}

}  // namespace lockstep
