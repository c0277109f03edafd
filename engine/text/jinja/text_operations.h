// Operations shared by filters and methods of strings.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja/value.h"

namespace lockstep::jinja {

// A string as it is; anything else as str() shows it.
Value soft_string(Heap& heap, const Value& value);
// A new string, safe if the string it was made of was. Where it is not told which of its parts are
// foreign, all are if any of the original is.
Value like(Heap& heap, const Value& original, TracedText text);
Value like(Heap& heap, const Value& original, std::string text);
// A part of a string: a view into its text.
Value part_of(Heap& heap, const Value& whole, std::string_view part);
TracedText traced_part(const Value& whole, std::string_view part);

enum class Side { kLeft, kRight, kBoth };
// Without white space, or without the given characters, at its ends.
std::string_view strip(Heap& heap, std::string_view text, Side side,
                       std::optional<std::string_view> characters);

// Every `old` replaced, at most `count` of them when that is not negative.
TracedText replace_text(Heap& heap, const TracedText& whole, std::string_view old,
                        const TracedText& replacement, int64_t count);
TracedText pad_text(Heap& heap, const TracedText& text, int64_t width, Side text_side,
                    const TracedText& fill);
std::vector<std::string_view> split_lines(Heap& heap, std::string_view text, bool keep_ends);

// int(text, base) and float(text); nullopt for what they refuse.
std::optional<int64_t> parse_integer(std::string_view text, int64_t base);
std::optional<double> parse_float(std::string_view text);

}  // namespace lockstep::jinja
