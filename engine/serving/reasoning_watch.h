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
  void add_behind(std::string_view bytes);
  const std::vector<TokenId>& end() const { return is_spent_ ? limit_.end_again : limit_.end; }

  ReasoningLimit limit_;
  Place place_;
  std::string text_;       // before reasoning all of it, then the last bytes
  uint32_t tokens_ = 0;    // within
  size_t ended_ = 0;       // of end()
  bool is_spent_ = false;  // limit_.end has come
};

}  // namespace lockstep
