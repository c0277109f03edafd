// The choices of POST /v1/completions; a whole choice and a chunk of a stream look the same.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/api/choices_writer.h"
#include "server/api/logprobs.h"

namespace lockstep {

class CompletionFormat : public ChoiceFormat {
 public:
  // `prompts`: their texts, for `echo`; each has `choices` choices. The tokenizer must outlive
  // this.
  CompletionFormat(const Tokenizer& tokenizer, std::optional<uint32_t> logprobs, size_t choices,
                   std::vector<std::string> prompts, bool echo);

  Json opening(size_t index) override;
  std::vector<Json> chunks(size_t index, const Output& output) override;
  Json choice(size_t index, const Output& whole) override;

 private:
  // What a choice has told so far.
  struct Told {
    bool started = false;
    LegacyLogprobs logprobs;
  };

  std::optional<uint32_t> logprobs_;
  size_t choices_;
  std::vector<std::string> prompts_;
  bool echo_;
  std::vector<Told> told_;  // by index
};

}  // namespace lockstep
