// What the log says of one HTTP request.
#pragma once

#include <optional>

#include "server/api/common/served_model.h"
#include "server/daemon/log_format.h"
#include "server/http/http_record.h"

namespace lockstep {

// The fields of its line. No text of a prompt or an answer is among them, but for `body` (the
// request's own) where the note brings one.
LogFields request_fields(LogFormat format, const HttpRecord& record,
                         const std::optional<GenerationNote>& note);

// Probes and scrapes come every few seconds: their lines are for debugging.
bool is_routine(const HttpRecord& record);

}  // namespace lockstep
