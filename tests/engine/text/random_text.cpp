#include "tests/engine/text/random_text.h"

#include <array>
#include <string_view>

namespace lockstep {

std::string random_bytes(std::mt19937_64& random, size_t size_bytes) {
  std::string bytes;
  for (size_t index = 0; index < size_bytes; ++index) {
    bytes.push_back(static_cast<char>(random() & 0xFFU));
  }
  return bytes;
}

std::string random_characters(std::mt19937_64& random, size_t character_count) {
  static constexpr std::array<std::string_view, 40> kParts = {
      " ",   " ",   " ",  "  ",    "\t",     "\n",     "\r\n",   "a",      "e",    "th",
      "The", "ing", "s",  "'s",    "'LL",    "don't",  "0",      "7",      "1234", ".",
      ",",   "!?",  "==", "<|x|>", "é",      "ß",      "Ж",      "и",      "中",   "文",
      "한",  "ก็",   "٣",  "½",     "\u00A0", "\u3000", "\u0085", "\u200D", "😀",    "🦙"};
  std::string text;
  for (size_t index = 0; index < character_count; ++index) {
    text.append(kParts[random() % kParts.size()]);
  }
  return text;
}

std::string random_mixture(std::mt19937_64& random, size_t part_count) {
  std::string text;
  for (size_t index = 0; index < part_count; ++index) {
    text.append(random() % 2 == 0 ? random_bytes(random, random() % 4)
                                  : random_characters(random, random() % 6));
  }
  return text;
}

}  // namespace lockstep
