// Text from outside, made fit for a message.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// `text` in double quotes: bytes that are not printable ASCII as \xNN, long text cut with "...".
std::string in_quotes(std::string_view text);

}  // namespace lockstep
