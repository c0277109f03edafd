#include "server/api/openai/completion_format.h"

#include <utility>

#include "server/api/common/outputs.h"

namespace lockstep {

CompletionFormat::CompletionFormat(const Tokenizer& tokenizer, std::optional<uint32_t> logprobs,
                                   size_t choices, std::vector<Prompt> prompts, bool echo,
                                   bool skip_special_tokens)
    : tokenizer_(tokenizer),
      logprobs_(logprobs),
      choices_(choices),
      prompts_(std::move(prompts)),
      echo_(echo),
      skip_special_tokens_(skip_special_tokens),
      told_(prompts_.size() * choices, Told{.logprobs = LegacyLogprobs(tokenizer, echo)}) {}

Json CompletionFormat::opening(size_t) {
  return nullptr;
}

std::vector<Json> CompletionFormat::chunks(size_t index, const Output& output) {
  const bool first_echo = echo_ && !told_[index].started;
  if (output.text.empty() && output.tokens.empty() && output.prompt.empty() && !output.finish &&
      !first_echo) {
    return {};
  }
  return {choice(index, output)};
}

std::string CompletionFormat::echoed(size_t index) const {
  const Prompt& prompt = prompts_[index / choices_];
  if (const auto* text = std::get_if<std::string>(&prompt)) return *text;
  return tokenizer_.decode(std::get<std::vector<TokenId>>(prompt), !skip_special_tokens_);
}

Json CompletionFormat::choice(size_t index, const Output& output) {
  Told& told = told_[index];
  std::string text;
  if (echo_ && !told.started) text = echoed(index);
  told.started = true;
  text += output.text;
  return {{"index", index},
          {"text", std::move(text)},
          {"logprobs", logprobs_ ? told.logprobs.take(output, *logprobs_) : Json(nullptr)},
          {"finish_reason", finish_reason(output)}};
}

}  // namespace lockstep
