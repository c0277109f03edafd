// What filters and methods of strings share.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja/value.h"

namespace lockstep::jinja {

// A string as it is; anything else as str() shows it.
std::string soft_text(Heap& heap, const Value& value);
// A new string, safe if the value it was made of was.
Value like(Heap& heap, const Value& original, std::string text);

enum class Side { kLeft, kRight, kBoth };
// Without white space, or without the given characters, at its ends.
std::string_view strip(Heap& heap, std::string_view text, Side side,
                       std::optional<std::string_view> characters);

// Every `old` replaced, at most `count` of them when that is not negative.
std::string replace_text(Heap& heap, std::string_view text, std::string_view old,
                         std::string_view replacement, int64_t count);
std::string pad_text(Heap& heap, std::string_view text, int64_t width, Side text_side,
                     std::string_view fill);
std::vector<std::string_view> split_lines(Heap& heap, std::string_view text, bool keep_ends);

// int(text, base) and float(text); nullopt for what they refuse.
std::optional<int64_t> parse_integer(std::string_view text, int64_t base);
std::optional<double> parse_float(std::string_view text);

}  // namespace lockstep::jinja
