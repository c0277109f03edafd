// How many of a request's tokens were thoughts. Belongs to one thread.
#pragma once

#include <cstdint>
#include <optional>

#include "server/api/common/turn_parser.h"

namespace lockstep {

class ThoughtCount {
 public:
  // Of an answer without thoughts.
  ThoughtCount() = default;
  // Of one that is read by these rules, before its first token.
  explicit ThoughtCount(const TurnRules& rules);

  // The next output of the request.
  void add(const Output& output);

  // Tokens up to the end of the thoughts, its mark among them; all so far while they go on.
  uint64_t tokens() const { return tokens_; }

 private:
  std::optional<TurnParser> parser_;  // none: no thoughts may come any more
  uint64_t seen_ = 0;
  uint64_t tokens_ = 0;
};

}  // namespace lockstep
