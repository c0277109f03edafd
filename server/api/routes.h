// The table of routes: which endpoint answers where, and in the words of which dialect errors are
// told: Anthropic's for /v1/messages and below, OpenAI's elsewhere.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"
#include "server/api/common/api_error.h"
#include "server/api/common/served_model.h"
#include "server/http/http_request.h"
#include "server/http/http_response.h"
#include "server/http/http_route.h"
#include "server/metrics/metrics.h"

namespace lockstep {

using ErrorObject = Json (*)(const ApiError& error);

ErrorObject error_object_of(std::string_view path);

// The error as the answer to a request, and as the HTTP layer's refusal of one.
void send_error(HttpResponse& response, const ApiError& error, ErrorObject object);
HttpRefusal to_http_refusal(const ApiError& error, ErrorObject object);

// HttpOptions::error_body: the HTTP layer's own errors.
std::string http_error_body(std::string_view path, int status, std::string_view message);

// The table. Both must outlive the server. `metrics` may be null: then there is no /metrics.
std::vector<HttpRoute> make_routes(ServedModel& model, const Metrics* metrics);

}  // namespace lockstep
