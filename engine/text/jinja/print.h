// How values are shown: Python's str() and repr().
#pragma once

#include <string>
#include <string_view>

#include "engine/text/jinja/value.h"

namespace lockstep::jinja {

std::string float_text(double value);  // the shortest that reads back the same
void append_str(Heap& heap, const Value& value, TextBuilder& text);
void append_repr(Heap& heap, const Value& value, TextBuilder& text);
std::string to_str(Heap& heap, const Value& value);
std::string to_repr(Heap& heap, const Value& value);
// & < > ' " as entities.
std::string escape_markup(Heap& heap, std::string_view text);

}  // namespace lockstep::jinja
