// JSON text that is kept while a request waits.
#pragma once

#include <string>

#include "engine/base/json_text.h"

namespace lockstep {

// Appends the value in one line with numbers in their shortest form. For a value that was read from
// JSON this is at most one and a half times its text there ("3e9" becomes "3e+09"), where to_text()
// may write four times as much ("1e15" as "1000000000000000.0"). As deep as the value is nested.
void append_compact_text(const Json& value, std::string& text);

}  // namespace lockstep
