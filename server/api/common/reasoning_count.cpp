#include "server/api/common/reasoning_count.h"

#include <utility>

namespace lockstep {

ReasoningCount::ReasoningCount(const TurnRules& rules) {
  if (!rules.reasoning && (rules.messages == nullptr || rules.starts_in_answer)) return;
  parser_.emplace(TurnRules{.functions = {},
                            .reasoning = rules.reasoning,
                            .starts_in_reasoning = rules.starts_in_reasoning,
                            .marks = rules.marks,
                            .messages = rules.messages});
  of_messages_ = rules.messages != nullptr;
}

void ReasoningCount::add(const Output& output) {
  for (const OutputToken& token : output.tokens) {
    if (!parser_) return;
    ++seen_;
    parser_->push(token.bytes);
    const TurnParser::ReasoningState reasoning = parser_->reasoning_state();
    if (of_messages_) {
      // Between messages there is a head, which is no reasoning.
      if (reasoning == TurnParser::ReasoningState::kNone) begins_turn_ = false;
      if (reasoning == TurnParser::ReasoningState::kOpen) {
        tokens_ = std::exchange(begins_turn_, false) ? seen_ : tokens_ + 1;
      }
      continue;
    }
    if (reasoning == TurnParser::ReasoningState::kOpen ||
        reasoning == TurnParser::ReasoningState::kOver) {
      tokens_ = seen_;
    }
    if (reasoning == TurnParser::ReasoningState::kOver ||
        reasoning == TurnParser::ReasoningState::kNone) {
      parser_.reset();
    }
  }
  // The tokens of a stop string do not come.
  const bool go_on = parser_ && parser_->reasoning_state() == TurnParser::ReasoningState::kOpen;
  if (go_on && output.finish) tokens_ += output.generated_tokens - seen_;
}

}  // namespace lockstep
