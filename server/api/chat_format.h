// The choices of POST /v1/chat/completions.
#pragma once

#include <vector>

#include "server/api/choices_writer.h"

namespace lockstep {

class ChatFormat : public ChoiceFormat {
 public:
  // The tokenizer must outlive this.
  ChatFormat(const Tokenizer& tokenizer, bool logprobs);

  Json opening(size_t index) override;
  std::vector<Json> chunks(size_t index, const Output& output) override;
  Json choice(size_t index, const Output& whole) override;

 private:
  Json chunk(size_t index, Json delta, Json logprobs, Json finish) const;

  const Tokenizer& tokenizer_;
  bool logprobs_;
};

}  // namespace lockstep
