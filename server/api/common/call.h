// One request on its way through its endpoint, and the form of all endpoints.
#pragma once

#include <optional>

#include "server/api/common/api_error.h"
#include "server/api/common/generation_note.h"
#include "server/api/common/key_lease.h"
#include "server/api/common/served_model.h"
#include "server/http/http_request.h"
#include "server/http/http_response.h"

namespace lockstep {

// Belongs to the thread that serves the request; the route ends the key's lease after the endpoint
// and sends the note to the log.
struct Call {
  ServedModel& model;
  const HttpRequest& request;
  HttpResponse& response;
  KeyLease key = {};                        // empty where the route asks nothing of its owner
  std::optional<GenerationNote> note = {};  // set where the engine was asked
};

// Sends the answer, or returns the error that the route sends instead; an error means that nothing
// of an answer has been sent.
using Endpoint = ApiResult<void> (*)(Call& call);

}  // namespace lockstep
