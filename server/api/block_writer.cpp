#include "server/api/block_writer.h"

#include <utility>

namespace lockstep {

BlockWriter::BlockWriter(TurnRules rules) : rules_(std::move(rules)), parser_(rules_) {}

std::string BlockWriter::news(size_t, const Output& output) {
  std::string text;
  for (const TurnEvent& event : parser_.push(output.text)) text += tell(event);
  if (!output.finish) return text;
  for (const TurnEvent& event : parser_.finish()) text += tell(event);
  // An answer has a block even if it says nothing.
  if (blocks_ == 0) text += change_to(TurnEvent::Kind::kText, "");
  text += change_to(std::nullopt, "");
  last_ = output;
  return text;
}

std::string BlockWriter::tell(const TurnEvent& event) {
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

std::string BlockWriter::change_to(std::optional<TurnEvent::Kind> kind,
                                   const std::string& function) {
  std::string text;
  if (open_) text += close_block(*open_, true);
  open_ = kind;
  if (!kind) return text;
  ++blocks_;
  return text + open_block(*kind, function);
}

}  // namespace lockstep
