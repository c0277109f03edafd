#include "server/api/common/thought_count.h"

namespace lockstep {

ThoughtCount::ThoughtCount(const TurnRules& rules) {
  if (!rules.reasoning) return;
  parser_.emplace(TurnRules{
      .functions = {}, .reasoning = true, .starts_in_reasoning = rules.starts_in_reasoning});
}

void ThoughtCount::add(const Output& output) {
  for (const OutputToken& token : output.tokens) {
    if (!parser_) return;
    ++seen_;
    parser_->push(token.bytes);
    const TurnParser::Thoughts thoughts = parser_->thoughts();
    if (thoughts == TurnParser::Thoughts::kOpen || thoughts == TurnParser::Thoughts::kOver) {
      tokens_ = seen_;
    }
    if (thoughts == TurnParser::Thoughts::kOver || thoughts == TurnParser::Thoughts::kNone) {
      parser_.reset();
    }
  }
  // The tokens of a stop string do not come.
  const bool go_on = parser_ && parser_->thoughts() == TurnParser::Thoughts::kOpen;
  if (go_on && output.finish) tokens_ = output.generated_tokens;
}

}  // namespace lockstep
