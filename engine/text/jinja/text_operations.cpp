#include "engine/text/jinja/text_operations.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/format.h"

namespace lockstep::jinja {

namespace {

bool is_one_of(std::string_view character, std::string_view characters) {
  return find_text(characters, character) != std::string_view::npos;
}

// Digits without the underscores that may separate them; nullopt where one stands elsewhere.
std::optional<std::string> join_digits(std::string_view text) {
  std::string joined;
  for (size_t index = 0; index < text.size(); ++index) {
    if (text[index] != '_') {
      joined += text[index];
      continue;
    }
    const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
    if (index == 0 || index + 1 == text.size() || !is_word(text[index - 1]) ||
        !is_word(text[index + 1])) {
      return std::nullopt;
    }
  }
  return joined;
}

}  // namespace

Value soft_string(Heap& heap, const Value& value) {
  if (!value.is_string()) return make_string(heap, to_str(heap, value));
  heap.step_bytes(value.text().size());
  return value;
}

Value like(Heap& heap, const Value& original, TracedText text) {
  return make_string(heap, std::move(text), original.is_markup());
}

Value like(Heap& heap, const Value& original, std::string text) {
  return like(heap, original, TracedText(std::move(text), original.traced().is_foreign()));
}

TracedText traced_part(const Value& whole, std::string_view part) {
  TracedText result;
  if (part.empty()) return result;
  result.append(whole.traced(), static_cast<size_t>(part.data() - whole.text().data()),
                part.size());
  return result;
}

Value part_of(Heap& heap, const Value& whole, std::string_view part) {
  return like(heap, whole, traced_part(whole, part));
}

std::string_view strip(Heap& heap, std::string_view text, Side side,
                       std::optional<std::string_view> characters) {
  heap.step_bytes(text.size());
  if (!characters) {
    if (side != Side::kRight) text = strip_left(text);
    return side == Side::kLeft ? text : strip_right(text);
  }
  const auto goes = [&](Character character, size_t offset) {
    heap.step(characters->size() / 64);
    return is_one_of(text.substr(offset, character.bytes), *characters);
  };
  while (side != Side::kRight && !text.empty()) {
    const Character character = first_character(text);
    if (!goes(character, 0)) break;
    text.remove_prefix(character.bytes);
  }
  while (side != Side::kLeft && !text.empty()) {
    const Character character = last_character(text);
    if (!goes(character, text.size() - character.bytes)) break;
    text.remove_suffix(character.bytes);
  }
  return text;
}

TracedText replace_text(Heap& heap, const TracedText& whole, std::string_view old,
                        const TracedText& replacement, int64_t count) {
  std::string_view text = whole.text;
  const auto append = [&](TextBuilder& result, size_t bytes) {
    result.append(whole, whole.text.size() - text.size(), bytes);
  };
  heap.step_bytes(text.size());
  TextBuilder result(heap);
  const uint64_t most = count < 0 ? UINT64_MAX : static_cast<uint64_t>(count);
  for (uint64_t done = 0; done < most; ++done) {
    heap.step();
    if (old.empty()) {
      // Before each character, and at the end.
      result.append(replacement);
      if (text.empty()) return result.finish();
      const size_t bytes = first_character(text).bytes;
      append(result, bytes);
      text.remove_prefix(bytes);
      continue;
    }
    const size_t found = find_text(text, old);
    if (found == std::string_view::npos) break;
    append(result, found);
    result.append(replacement);
    text.remove_prefix(found + old.size());
  }
  append(result, text.size());
  return result.finish();
}

TracedText pad_text(Heap& heap, const TracedText& text, int64_t width, Side text_side,
                    const TracedText& fill) {
  heap.step_bytes(text.text.size());
  const auto size = static_cast<int64_t>(character_count(text.text));
  const int64_t padding = std::max<int64_t>(0, width - size);
  heap.reserve(static_cast<uint64_t>(padding));
  heap.step_bytes(static_cast<uint64_t>(padding));
  int64_t before = 0;
  if (text_side == Side::kRight) before = padding;
  // Python gives the odd one to the left when the width is odd.
  if (text_side == Side::kBoth) before = padding / 2 + (padding & width & 1);
  TextBuilder result(heap);
  for (int64_t index = 0; index < before; ++index) result.append(fill);
  result.append(text);
  for (int64_t index = before; index < padding; ++index) result.append(fill);
  return result.finish();
}

std::vector<std::string_view> split_lines(Heap& heap, std::string_view text, bool keep_ends) {
  heap.step_bytes(text.size());
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    heap.step();
    const Line line = first_line(text);
    lines.push_back(text.substr(0, keep_ends ? line.bytes_with_break : line.bytes));
    text.remove_prefix(line.bytes_with_break);
  }
  return lines;
}

std::optional<int64_t> parse_integer(std::string_view text, int64_t base) {
  if (base != 0 && (base < 2 || base > 36)) fail("int() base must be >= 2 and <= 36, or 0");
  std::string_view digits = strip_right(strip_left(text));
  const std::string_view whole = digits;
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  if (digits.size() > 1 && digits[0] == '0') {
    const char letter = static_cast<char>(digits[1] | 0x20);
    const int64_t prefixed = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (prefixed != 0 && (base == 0 || base == prefixed)) {
      base = prefixed;
      digits.remove_prefix(digits.substr(2).starts_with('_') ? 3 : 2);
    }
  }
  if (base == 0) base = 10;
  const auto joined = join_digits(digits);
  if (!joined || joined->empty()) return std::nullopt;
  const std::string number = (negative ? "-" : "") + *joined;
  if (joined->starts_with('-')) return std::nullopt;
  int64_t value = 0;
  const auto result =
      std::from_chars(number.data(), number.data() + number.size(), value, static_cast<int>(base));
  if (result.ptr != number.data() + number.size()) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) {
    fail("the integer {} does not fit 64 bits", whole.substr(0, 80));
  }
  if (result.ec != std::errc()) return std::nullopt;
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  const auto joined = join_digits(strip_right(strip_left(text)));
  if (!joined) return std::nullopt;
  std::string_view digits = *joined;
  if (digits.starts_with('+')) {
    digits.remove_prefix(1);
    if (digits.starts_with('-')) return std::nullopt;
  }
  if (digits.empty() || digits.find('(') != std::string_view::npos) return std::nullopt;
  double value = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (result.ptr != digits.data() + digits.size()) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) {
    return std::strtod(std::string(digits).c_str(), nullptr);
  }
  if (result.ec != std::errc()) return std::nullopt;
  return value;
}

}  // namespace lockstep::jinja
