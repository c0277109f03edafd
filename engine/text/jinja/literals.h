// Literals of expressions: strings with Python's escapes, and numbers.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/text/jinja/lexer.h"

namespace lockstep::jinja {

// Resolves the escapes of what stands between the quotes. Throws a Failure for a broken one.
std::string unescape(std::string_view quoted);

// The bytes of the integer or float at the beginning of the text; 0 when there is none.
size_t float_length(std::string_view text);
size_t integer_length(std::string_view text);
double read_float(std::string_view digits);
int64_t read_integer(std::string_view digits);

}  // namespace lockstep::jinja
