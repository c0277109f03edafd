// How Python writes values as text: str() and repr(), and its two ways to format, pattern % values
// and pattern.format(values).
#pragma once

#include <string>
#include <string_view>

#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/value.h"

namespace lockstep::jinja {

std::string float_text(double value);  // the shortest that reads back the same
void append_str(Heap& heap, const Value& value, TextBuilder& text);
void append_repr(Heap& heap, const Value& value, TextBuilder& text);
TracedText to_str(Heap& heap, const Value& value);
TracedText to_repr(Heap& heap, const Value& value);
// & < > ' " as entities; foreign as a whole where any part of the text is.
TracedText escape_markup(Heap& heap, const TracedText& text);

Value format_percent(Heap& heap, const Value& pattern, const Value& values);
Value format_braces(Heap& heap, const Value& pattern, const Arguments& arguments);

// How a number is laid out: format()'s little language without the part on fill and width.
struct NumberFormat {
  char type = 0;       // d b o x X e E f F g G %; 0: as the number is shown
  int precision = -1;  // -1: the type's own
  char sign = '-';     // '-', '+' or ' '
  bool alternate = false;
  char thousands = 0;  // ',' or '_'
};

// Sign, prefix and digits of a number.
struct NumberText {
  std::string sign;  // with the prefix (0x ...)
  std::string digits;
};
NumberText format_integer(int64_t value, const NumberFormat& format);
NumberText format_float(double value, const NumberFormat& format);

}  // namespace lockstep::jinja
