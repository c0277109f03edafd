// Writes what the log says of one HTTP request.
#pragma once

#include "server/daemon/log_format.h"
#include "server/http/http_options.h"

namespace lockstep {

// The fields of its line; those of the generation are read from the record's note where it is a
// GenerationNote. No text of a prompt or an answer is among them, but for `body` (the request's
// own) where the note brings one.
LogFields request_fields(LogFormat format, const HttpRecord& record);

// Probes and scrapes come every few seconds: their lines are for debugging.
bool is_routine(const HttpRecord& record);

}  // namespace lockstep
