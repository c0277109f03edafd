#include "engine/text/utf8.h"

#include "engine/base/check.h"

namespace lockstep {

namespace {

constexpr uint32_t kReplacementCharacter = 0xFFFD;

// The demands of a first byte: how many bytes follow and, where the standard narrows it to keep out
// overlong forms, surrogates and what lies above U+10FFFF, the range of the second byte
// (table 3-7 of the Unicode standard).
struct LeadByte {
  size_t following = 0;
  uint32_t bits = 0;  // the character's bits in the first byte
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
  bool valid = false;
};

LeadByte read_lead_byte(uint8_t byte) {
  if (byte < 0x80) return {0, byte, 0x80, 0xBF, true};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {1, byte & 0x1FU, 0x80, 0xBF, true};
  if (byte < 0xF0) {
    const uint8_t second_min = byte == 0xE0 ? 0xA0 : 0x80;
    const uint8_t second_max = byte == 0xED ? 0x9F : 0xBF;
    return {2, byte & 0x0FU, second_min, second_max, true};
  }
  if (byte < 0xF5) {
    const uint8_t second_min = byte == 0xF0 ? 0x90 : 0x80;
    const uint8_t second_max = byte == 0xF4 ? 0x8F : 0xBF;
    return {3, byte & 0x07U, second_min, second_max, true};
  }
  return {};
}

}  // namespace

DecodedCharacter decode_utf8(std::string_view text) {
  CHECK(!text.empty(), "decode_utf8 was given no bytes");
  const LeadByte lead = read_lead_byte(static_cast<uint8_t>(text[0]));
  if (!lead.valid) return {};
  uint32_t code_point = lead.bits;
  for (size_t index = 1; index <= lead.following; ++index) {
    if (index == text.size()) return {kReplacementCharacter, index, false};
    const auto byte = static_cast<uint8_t>(text[index]);
    const uint8_t least = index == 1 ? lead.second_min : 0x80;
    const uint8_t most = index == 1 ? lead.second_max : 0xBF;
    if (byte < least || byte > most) return {kReplacementCharacter, index, false};
    code_point = (code_point << 6U) | (byte & 0x3FU);
  }
  return {code_point, lead.following + 1, true};
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const DecodedCharacter character = decode_utf8(text);
    if (!character.valid) return false;
    text.remove_prefix(character.size_bytes);
  }
  return true;
}

size_t complete_utf8_length(std::string_view text) {
  // An unfinished character has at most three bytes, and its first is no continuation byte.
  for (size_t tail = 1; tail <= 3 && tail <= text.size(); ++tail) {
    const std::string_view last = text.substr(text.size() - tail);
    const LeadByte lead = read_lead_byte(static_cast<uint8_t>(last[0]));
    if (!lead.valid) continue;
    const bool unfinished = lead.following + 1 > tail && decode_utf8(last).size_bytes == tail;
    return unfinished ? text.size() - tail : text.size();
  }
  return text.size();
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const DecodedCharacter character = decode_utf8(text);
    if (character.valid) {
      result.append(text.substr(0, character.size_bytes));
    } else {
      append_utf8(kReplacementCharacter, result);
    }
    text.remove_prefix(character.size_bytes);
  }
  return result;
}

void append_utf8(uint32_t code_point, std::string& text) {
  const auto append = [&text](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point <= 0xDFFF)) {
    code_point = kReplacementCharacter;
  }
  if (code_point < 0x80) {
    append(code_point);
  } else if (code_point < 0x800) {
    append(0xC0U | (code_point >> 6U));
    append(0x80U | (code_point & 0x3FU));
  } else if (code_point < 0x10000) {
    append(0xE0U | (code_point >> 12U));
    append(0x80U | ((code_point >> 6U) & 0x3FU));
    append(0x80U | (code_point & 0x3FU));
  } else {
    append(0xF0U | (code_point >> 18U));
    append(0x80U | ((code_point >> 12U) & 0x3FU));
    append(0x80U | ((code_point >> 6U) & 0x3FU));
    append(0x80U | (code_point & 0x3FU));
  }
}

}  // namespace lockstep
