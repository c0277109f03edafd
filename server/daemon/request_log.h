// The log's line for each HTTP request.
#pragma once

#include <optional>

#include "server/api/served_model.h"
#include "server/http/http_server.h"

namespace lockstep {

// Any thread. Probes and scrapes are logged at level debug.
void log_request(const HttpRecord& record, const std::optional<GenerationNote>& note);

}  // namespace lockstep
