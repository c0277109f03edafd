// Finds the first of several stop strings in a text that comes in pieces, also across their
// borders, and holds back only what may still become one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);  // empty strings are ignored

  struct Progress {
    std::string released;           // text that is certainly before any stop
    std::optional<size_t> matched;  // index of the stop string that was found: the end
  };
  // After a match nothing more may be pushed. Among stops that end at the same byte the longest
  // wins; otherwise the one that is complete first.
  Progress push(std::string_view text);

  // The end without a match: what was held back.
  std::string finish();

 private:
  std::vector<std::string> stops_;
  std::string held_;
};

}  // namespace lockstep
