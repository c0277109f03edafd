#include "server/api/openai/logprobs.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace lockstep {
namespace {

constexpr double kVeryUnlikely = -9999.0;

// Whether JSON can carry these bytes as they are.
bool is_text(std::string_view bytes) {
  try {
    static_cast<void>(Json(bytes).dump());
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

// Characters that start in these bytes, so that those of a cut character count once.
int64_t count_characters(std::string_view bytes) {
  return std::ranges::count_if(
      bytes, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; });
}

Json byte_list(std::string_view bytes) {
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(static_cast<unsigned char>(byte));
  return list;
}

Json chat_token(const Tokenizer& tokenizer, TokenId token, float logprob) {
  const std::string_view piece = tokenizer.piece(token, true);
  return {{"token", piece}, {"logprob", finite_logprob(logprob)}, {"bytes", byte_list(piece)}};
}

}  // namespace

double finite_logprob(float logprob) {
  return std::isfinite(logprob) ? static_cast<double>(logprob) : kVeryUnlikely;
}

std::string legacy_token_text(std::string_view bytes) {
  if (is_text(bytes)) return std::string(bytes);
  std::string text = "bytes:";
  for (const char byte : bytes) {
    text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

LegacyLogprobs::LegacyLogprobs(const Tokenizer& tokenizer, bool echo)
    : tokenizer_(tokenizer), strip_space_(echo && tokenizer.strips_leading_space()) {}

Json LegacyLogprobs::take(const Output& output, uint32_t alternatives) {
  Json texts = Json::array();
  Json logprobs = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  const auto add = [&](const OutputToken& token, bool in_prompt) {
    std::string_view piece = tokenizer_.piece(token.token, true);
    std::string_view bytes = token.bytes;
    if (in_prompt && strip_space_ && !bytes.empty()) {
      strip_space_ = false;
      if (bytes.starts_with(' ')) bytes.remove_prefix(1);
      if (piece.starts_with(' ')) piece.remove_prefix(1);
    }
    const std::string text = legacy_token_text(piece);
    texts.push_back(text);
    offsets.push_back(character_);
    character_ += count_characters(bytes);
    if (std::isnan(token.logprob)) {  // the first token of a prompt follows nothing
      logprobs.push_back(nullptr);
      tops.push_back(nullptr);
      return;
    }
    logprobs.push_back(finite_logprob(token.logprob));
    Json top = Json::object();
    for (const TokenLogprob& other : token.top) {
      // Two tokens may have one text: the likelier one, which comes first, keeps it.
      top.emplace(legacy_token_text(tokenizer_.piece(other.token, true)),
                  finite_logprob(other.logprob));
    }
    top.emplace(text, finite_logprob(token.logprob));
    tops.push_back(alternatives == 0 && top.size() > 1 ? Json{{text, finite_logprob(token.logprob)}}
                                                       : std::move(top));
  };
  for (const OutputToken& token : output.prompt) add(token, true);
  for (const OutputToken& token : output.tokens) add(token, false);
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json chat_logprobs(const Tokenizer& tokenizer, const Output& output) {
  Json content = Json::array();
  std::span<const OutputToken> tokens = output.tokens;
  // The token that the answer stopped at is no part of the message.
  const bool at_token = output.finish == FinishReason::kStop && output.stop.empty();
  if (at_token && !tokens.empty() && tokens.back().bytes.empty()) {
    tokens = tokens.first(tokens.size() - 1);
  }
  for (const OutputToken& token : tokens) {
    Json entry = chat_token(tokenizer, token.token, token.logprob);
    Json top = Json::array();
    for (const TokenLogprob& other : token.top) {
      top.push_back(chat_token(tokenizer, other.token, other.logprob));
    }
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

}  // namespace lockstep
