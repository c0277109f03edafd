// The strings that a SentencePiece model replaces in a text before it cuts it. Source: the
// SentencePiece library's precompiled_charsmap: a double array (the darts-clone library) and the
// replacements, each with a zero behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace lockstep {

class CharacterMap {
 public:
  CharacterMap() = default;  // replaces nothing
  // kInvalidInput where sizes do not fit one another, or a replacement is longer than
  // kReplacementBytesMax. Whatever else `bytes` hold, find() stays within them.
  static Result<CharacterMap> make(std::span<const uint8_t> bytes);
  // A longer replacement is refused, so that texts grow no further. Unicode's own forms need 33.
  static constexpr size_t kReplacementBytesMax = 256;

  struct Replacement {
    size_t size_bytes = 0;  // of the text that is replaced
    std::string_view text;
  };
  // The longest of the strings that `text` begins with and that are replaced.
  std::optional<Replacement> find(std::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  std::string replacements_;  // ends with a zero
};

}  // namespace lockstep
