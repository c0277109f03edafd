// The choices of POST /v1/chat/completions.
#pragma once

#include <vector>

#include "server/api/common/turn_parser.h"
#include "server/api/openai/choices.h"

namespace lockstep {

class ChatFormat : public ChoiceFormat {
 public:
  // The tokenizer must outlive this. `rules`: how the choices' texts are read.
  ChatFormat(const Tokenizer& tokenizer, bool logprobs, TurnRules rules = {});

  Json opening(size_t index) override;
  std::vector<Json> chunks(size_t index, const Output& output) override;
  Json choice(size_t index, const Output& whole) override;

 private:
  // The parts of a choice that have been told so far.
  struct Told {
    explicit Told(const TurnRules& rules) : parser(rules) {}

    TurnParser parser;
    size_t calls = 0;        // begun
    size_t sound_calls = 0;  // complete
  };

  Told& told(size_t index);
  // The delta that an event makes; null for none.
  Json delta(Told& told, const TurnEvent& event) const;
  Json chunk(size_t index, Json delta, Json logprobs, Json finish) const;

  const Tokenizer& tokenizer_;
  bool logprobs_;
  TurnRules rules_;
  std::vector<Told> told_;  // by index
};

}  // namespace lockstep
