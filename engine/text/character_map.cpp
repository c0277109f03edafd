#include "engine/text/character_map.h"

#include <cstring>
#include <utility>

namespace lockstep {

namespace {

// A unit of the double array: the byte that leads to it, or the sign that it is a value; whether a
// value hangs below it; and how far its children are.
constexpr uint32_t kValueSign = 1U << 31U;
constexpr uint32_t kHasValue = 1U << 8U;
constexpr uint32_t kFarChildren = 1U << 9U;
// Longer strings are not replaced. A file's table may have circles.
constexpr size_t kReplacedBytesMax = 256;

uint32_t label_of(uint32_t unit) {
  return unit & (kValueSign | 0xFFU);
}
uint32_t offset_of(uint32_t unit) {
  return (unit >> 10U) << ((unit & kFarChildren) != 0 ? 8U : 0U);
}

}  // namespace

Result<CharacterMap> CharacterMap::make(std::span<const uint8_t> bytes) {
  CharacterMap map;
  if (bytes.empty()) return map;
  uint32_t unit_bytes = 0;
  const bool has_size = bytes.size() >= sizeof(unit_bytes);
  if (has_size) std::memcpy(&unit_bytes, bytes.data(), sizeof(unit_bytes));
  const size_t left = bytes.size() - (has_size ? sizeof(unit_bytes) : 0);
  if (!has_size || unit_bytes % sizeof(uint32_t) != 0 || unit_bytes >= left || bytes.back() != 0) {
    return invalid_input(
        "tokenizer.ggml.precompiled_charsmap has {} bytes, which are no table of {} bytes and "
        "texts that end with a zero: convert the model again.",
        bytes.size(), unit_bytes);
  }
  const auto units = bytes.subspan(sizeof(unit_bytes), unit_bytes);
  map.units_.resize(unit_bytes / sizeof(uint32_t));
  if (!units.empty()) std::memcpy(map.units_.data(), units.data(), units.size());
  const auto texts = bytes.subspan(sizeof(unit_bytes) + unit_bytes);
  map.replacements_.assign(texts.begin(), texts.end());
  for (size_t begin = 0; begin < map.replacements_.size();) {
    const size_t size = map.replacements_.find('\0', begin) - begin;
    if (size > kReplacementBytesMax) {
      return invalid_input(
          "tokenizer.ggml.precompiled_charsmap replaces strings by one of {} bytes; such a text "
          "may "
          "have {}.",
          size, kReplacementBytesMax);
    }
    begin += size + 1;
  }
  return map;
}

std::optional<CharacterMap::Replacement> CharacterMap::find(std::string_view text) const {
  std::optional<Replacement> longest;
  if (units_.empty()) return longest;
  uint32_t place = offset_of(units_[0]);
  text = text.substr(0, kReplacedBytesMax);
  for (size_t index = 0; index < text.size(); ++index) {
    const auto byte = static_cast<uint8_t>(text[index]);
    place ^= byte;
    if (byte == 0 || place >= units_.size() || label_of(units_[place]) != byte) break;
    const uint32_t unit = units_[place];
    place ^= offset_of(unit);
    if ((unit & kHasValue) == 0) continue;
    if (place >= units_.size()) break;
    const uint32_t begin = units_[place] & ~kValueSign;
    if (begin >= replacements_.size()) break;
    // There is a zero behind it: the last byte is one.
    longest = {index + 1, std::string_view(replacements_.c_str() + begin)};
  }
  return longest;
}

}  // namespace lockstep
