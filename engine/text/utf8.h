// UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

bool is_valid_utf8(std::string_view text);

// Length in bytes of the longest prefix that ends at a character's border: what follows is an
// unfinished but so far valid character (0 to 3 bytes).
size_t complete_utf8_length(std::string_view text);

// Every maximal invalid part replaced by U+FFFD (the WHATWG rule).
std::string replace_invalid_utf8(std::string_view text);

void append_utf8(uint32_t code_point, std::string& text);

struct DecodedCharacter {
  uint32_t code_point = 0xFFFD;
  size_t size_bytes = 1;  // bytes consumed; 1 or more also when invalid
  bool valid = false;
};
// The character that starts at text[0]; text is not empty.
DecodedCharacter decode_utf8(std::string_view text);

}  // namespace lockstep
