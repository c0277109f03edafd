// How many of a request's tokens were reasoning.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/engine.h"
#include "server/api/common/turn_parser.h"

namespace lockstep {

// Belongs to one thread.
class ReasoningCount {
 public:
  // Counts for an answer without reasoning.
  ReasoningCount() = default;
  // Counts for an answer that is read by these rules, before its first token.
  explicit ReasoningCount(const TurnRules& rules);

  // The next output of the request.
  void add(const Output& output);

  // Tokens up to the end of the reasoning, its mark among them; all so far while it goes on. Of
  // messages, those of all reasoning, and the head of the turn's first message if that is of it.
  uint64_t tokens() const { return tokens_; }

 private:
  std::optional<TurnParser> parser_;  // none: no reasoning may come any more
  bool of_messages_ = false;
  bool begins_turn_ = true;  // no message has begun
  uint64_t seen_ = 0;
  uint64_t tokens_ = 0;
};

}  // namespace lockstep
