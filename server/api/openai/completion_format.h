// The choices of POST /v1/completions; a whole choice and a chunk of a stream look the same.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/api/openai/choices.h"
#include "server/api/openai/completion_request.h"
#include "server/api/openai/logprobs.h"

namespace lockstep {

class CompletionFormat : public ChoiceFormat {
 public:
  // `prompts`: for `echo`; each has `choices` choices. Those that came as ids become text only when
  // they are told: a token may stand for a hundred bytes. The tokenizer must outlive this.
  CompletionFormat(const Tokenizer& tokenizer, std::optional<uint32_t> logprobs, size_t choices,
                   std::vector<Prompt> prompts, bool echo, bool skip_special_tokens = true);

  Json opening(size_t index) override;
  std::vector<Json> chunks(size_t index, const Output& output) override;
  Json choice(size_t index, const Output& whole) override;

 private:
  // The parts of a choice that have been told so far.
  struct Told {
    bool started = false;
    LegacyLogprobs logprobs;
  };

  std::string echoed(size_t index) const;  // the prompt of this choice

  const Tokenizer& tokenizer_;
  std::optional<uint32_t> logprobs_;
  size_t choices_;
  std::vector<Prompt> prompts_;
  bool echo_;
  bool skip_special_tokens_;
  std::vector<Told> told_;  // by index
};

}  // namespace lockstep
