#include "server/api/common/block_stream.h"

#include <utility>

namespace lockstep {

BlockStream::BlockStream(TurnRules rules) : parser_(std::move(rules)) {}

std::string BlockStream::news(size_t, const Output& output) {
  std::string text;
  for (const TurnEvent& event : parser_.push(output.text)) text += tell(event);
  if (!output.finish) return text;
  for (const TurnEvent& event : parser_.finish()) text += tell(event);
  // An answer has a block even if it says nothing.
  if (blocks_ == 0) text += change_to(TurnEvent::Kind::kText, "");
  text += close(!cuts(output));
  last_ = output;
  return text;
}

std::string BlockStream::tell(const TurnEvent& event) {
  switch (event.kind) {
    case TurnEvent::Kind::kText:
    case TurnEvent::Kind::kReasoning: {
      std::string text = open_ == event.kind ? "" : change_to(event.kind, "");
      return text + extend_block(event.kind, event.text);
    }
    case TurnEvent::Kind::kCall:
      return change_to(event.kind, event.text);
    case TurnEvent::Kind::kArguments:
      return extend_block(TurnEvent::Kind::kCall, event.text);
    case TurnEvent::Kind::kCallEnd: {
      if (event.sound) ++sound_calls_;
      open_.reset();
      return close_block(TurnEvent::Kind::kCall, event.sound);
    }
  }
  return "";
}

std::string BlockStream::change_to(TurnEvent::Kind kind, const std::string& function) {
  std::string text = close(true);
  open_ = kind;
  ++blocks_;
  return text + open_block(kind, function);
}

std::string BlockStream::close(bool sound) {
  if (!open_) return "";
  return close_block(*std::exchange(open_, std::nullopt), sound);
}

// Whether what is open goes no further because the answer may be no longer.
bool BlockStream::cuts(const Output& last) const {
  const bool has_ended = open_ == TurnEvent::Kind::kReasoning &&
                         parser_.reasoning_state() == TurnParser::ReasoningState::kOver;
  return last.finish == FinishReason::kLength && !has_ended;
}

}  // namespace lockstep
