#include "server/api/chat_format.h"

#include <utility>

#include "server/api/logprobs.h"

namespace lockstep {

ChatFormat::ChatFormat(const Tokenizer& tokenizer, bool logprobs)
    : tokenizer_(tokenizer), logprobs_(logprobs) {}

Json ChatFormat::chunk(size_t index, Json delta, Json logprobs, Json finish) const {
  return {{"index", index},
          {"delta", std::move(delta)},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", std::move(finish)}};
}

Json ChatFormat::opening(size_t index) {
  return chunk(index, {{"role", "assistant"}, {"content", ""}, {"refusal", nullptr}}, nullptr,
               nullptr);
}

std::vector<Json> ChatFormat::chunks(size_t index, const Output& output) {
  std::vector<Json> chunks;
  const bool tells_tokens = logprobs_ && !output.tokens.empty();
  if (!output.text.empty() || tells_tokens) {
    chunks.push_back(chunk(index, {{"content", output.text}},
                           tells_tokens ? chat_logprobs(tokenizer_, output.tokens) : Json(nullptr),
                           nullptr));
  }
  if (output.finish) {
    chunks.push_back(chunk(index, Json::object(), nullptr, finish_reason(output)));
  }
  return chunks;
}

Json ChatFormat::choice(size_t index, const Output& whole) {
  return {{"index", index},
          {"message", {{"role", "assistant"}, {"content", whole.text}, {"refusal", nullptr}}},
          {"logprobs", logprobs_ ? chat_logprobs(tokenizer_, whole.tokens) : Json(nullptr)},
          {"finish_reason", finish_reason(whole)}};
}

}  // namespace lockstep
