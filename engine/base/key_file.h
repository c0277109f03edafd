// Whether a file with keys may be relied on.
#pragma once

#include <string>

#include "engine/base/result.h"

namespace lockstep {

// Refuses (kInvalidInput) a file that is not there or no regular one, and one that its group or
// everybody may write: what another user has put there would be let in. Warns of one that everybody
// may read. `option` is where the file was named, for the messages.
Result<void> check_key_file(const std::string& file, const char* option);

}  // namespace lockstep
