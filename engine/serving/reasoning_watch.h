// Follows a generated text as far as its reasoning's limit needs it. Belongs to the engine's
// thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/interface/request.h"

namespace lockstep {

class ReasoningWatch {
 public:
  explicit ReasoningWatch(ReasoningLimit limit);

  // The token that must come next; none: any may.
  std::optional<TokenId> next() const;

  // The next token's text, as ReasoningLimit has it. After next() said a token, that one has come.
  void add(std::string_view bytes);

 private:
  enum class Place { kBefore, kWithin, kEnding, kBehind };

  void add_within(std::string_view bytes);

  ReasoningLimit limit_;
  Place place_;
  std::string text_;     // before reasoning all of it, within the last bytes
  uint32_t tokens_ = 0;  // within
  size_t ended_ = 0;     // of limit_.end
};

}  // namespace lockstep
