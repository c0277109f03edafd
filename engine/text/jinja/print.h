// How values are shown: Python's str() and repr().
#pragma once

#include <string>

#include "engine/text/jinja/value.h"

namespace lockstep::jinja {

std::string float_text(double value);  // the shortest that reads back the same
void append_str(Heap& heap, const Value& value, TextBuilder& text);
void append_repr(Heap& heap, const Value& value, TextBuilder& text);
TracedText to_str(Heap& heap, const Value& value);
TracedText to_repr(Heap& heap, const Value& value);
// & < > ' " as entities; foreign as a whole where any part of the text is.
TracedText escape_markup(Heap& heap, const TracedText& text);

}  // namespace lockstep::jinja
