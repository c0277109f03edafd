#include "server/api/routes.h"

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
    {"POST", "/v1/responses", post_responses, false},
    {"POST", "/v1/messages", post_messages, false},
    {"POST", "/v1/messages/count_tokens", post_count_tokens, false},
    {"GET", "/v1/models", get_models, false},
    {"GET", "/v1/models/:id", get_model, false},
    {"POST", "/tokenize", post_tokenize, false},
    {"POST", "/detokenize", post_detokenize, false},
    {"GET", "/tokenizer_info", get_tokenizer_info, false},
    {"POST", "/apply-template", post_apply_template, false},
    {"GET", "/openapi.json", get_openapi, false},
    {"GET", "/version", get_version, false},
    {"GET", "/health/live", get_live, true},
    {"GET", "/health/ready", get_ready, true},
    {"GET", "/health", get_ready, true},
};

}  // namespace

std::vector<HttpRoute> make_routes(ServedModel& model, const Metrics* metrics) {
  std::vector<HttpRoute> routes;
  for (const Row& row : kRows) {
    routes.push_back(HttpRoute{
        row.method, row.pattern,
        [&model, endpoint = row.endpoint](const HttpRequest& request, HttpResponse& response) {
          endpoint(model, request, response);
        },
        row.always});
  }
  if (metrics != nullptr) {
    routes.push_back(HttpRoute{"GET", "/metrics",
                               [metrics](const HttpRequest&, HttpResponse& response) {
                                 response.send(200, Metrics::kContentType, metrics->text());
                               },
                               true});
  }
  return routes;
}

}  // namespace lockstep
