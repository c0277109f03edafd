#include "server/api/routes.h"

#include <exception>

#include "engine/base/log.h"
#include "server/api/endpoints.h"

namespace lockstep {
namespace {

using Endpoint = void (*)(ServedModel&, const HttpRequest&, HttpResponse&);

struct Row {
  const char* method;
  const char* pattern;
  Endpoint endpoint;
  bool always;  // also when all threads are busy
};

constexpr Row kRows[] = {
    {"POST", "/v1/completions", post_completions, false},
    {"POST", "/v1/chat/completions", post_chat_completions, false},
    {"GET", "/v1/models", get_models, false},
    {"GET", "/v1/models/:id", get_model, false},
    {"POST", "/tokenize", post_tokenize, false},
    {"POST", "/detokenize", post_detokenize, false},
    {"GET", "/version", get_version, false},
    {"GET", "/health/live", get_live, true},
    {"GET", "/health/ready", get_ready, true},
    {"GET", "/health", get_ready, true},
};

// A bug in an endpoint, or memory that ran out, ends one request and no other.
HttpHandler guarded(HttpHandler handler) {
  return [handler = std::move(handler)](const HttpRequest& request, HttpResponse& response) {
    try {
      handler(request, response);
    } catch (const std::exception& exception) {
      spdlog::error("request {}: {} {} failed: {}", request.request_id, request.method,
                    request.path, exception.what());
      send_error(response, server_error("The request failed inside the server; its log has more"));
    }
  };
}

}  // namespace

std::vector<HttpRoute> make_routes(ServedModel& model, const Metrics* metrics) {
  std::vector<HttpRoute> routes;
  for (const Row& row : kRows) {
    routes.push_back(HttpRoute{row.method, row.pattern,
                               guarded([&model, endpoint = row.endpoint](const HttpRequest& request,
                                                                         HttpResponse& response) {
                                 endpoint(model, request, response);
                               }),
                               row.always});
  }
  if (metrics != nullptr) {
    routes.push_back(HttpRoute{"GET", "/metrics",
                               guarded([metrics](const HttpRequest&, HttpResponse& response) {
                                 response.send(200, Metrics::kContentType, metrics->text());
                               }),
                               true});
  }
  return routes;
}

}  // namespace lockstep
