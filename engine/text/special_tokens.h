// Finds tokens that are split out of a text before anything else is done with it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

class SpecialTokens {
 public:
  // Longer ones are refused when a vocabulary is made: the search looks at up to this many bytes
  // from each position.
  static constexpr size_t kTextBytesMax = 256;

  SpecialTokens() = default;
  // Texts and their tokens; empty texts are ignored, of equal texts the lowest id counts.
  explicit SpecialTokens(std::vector<std::pair<std::string, int32_t>> tokens);

  struct Match {
    size_t position = 0;
    size_t size_bytes = 0;
    int32_t token = 0;
  };
  // The leftmost occurrence that starts at or after `from`; of those at one position the longest.
  // Only those that `accepts` takes count.
  using Accepts = std::function<bool(const Match&)>;
  std::optional<Match> find(std::string_view text, size_t from,
                            const Accepts& accepts = nullptr) const;

  // The longest text's size; 0: there is none.
  size_t text_bytes_max() const { return text_bytes_max_; }

 private:
  std::optional<Match> find_at(std::string_view text, size_t position,
                               const Accepts& accepts) const;

  std::vector<std::pair<std::string, int32_t>> sorted_;
  std::array<bool, 256> starts_{};  // whether a text starts with this byte
  size_t text_bytes_max_ = 0;
};

}  // namespace lockstep
