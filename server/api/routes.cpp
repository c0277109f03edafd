#include "server/api/routes.h"

#include <chrono>
#include <memory>
#include <string>

#include "engine/base/mutex.h"
#include "server/api/endpoints.h"
#include "server/api/http_error_body.h"

namespace lockstep {
namespace {

using Endpoint = void (*)(ServedModel&, const HttpRequest&, HttpResponse&);

struct Row {
  const char* method;
  const char* pattern;
  Endpoint endpoint;
  bool always;          // also when all threads are busy
  bool queues = false;  // it needs a place in the engine's queue
};

constexpr Row kRows[] = {
    {"POST", "/v1/completions", post_completions, false, true},
    {"POST", "/v1/chat/completions", post_chat_completions, false, true},
    {"POST", "/v1/embeddings", post_embeddings, false, true},
    {"POST", "/v1/responses", post_responses, false, true},
    {"POST", "/v1/messages", post_messages, false, true},
    {"POST", "/v1/messages/count_tokens", post_count_tokens, false},
    {"GET", "/v1/models", get_models, false},
    {"GET", "/v1/models/:id*", get_model, false},
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

// Many scrapes at once cost one: who waited while a page was begun and written gets that page.
class MetricsPage {
 public:
  explicit MetricsPage(const Metrics& metrics) : metrics_(metrics) {}

  // As it was at a time after `arrived`.
  std::string text(std::chrono::steady_clock::time_point arrived) {
    const MutexLock lock(mutex_);
    if (begun_ <= arrived) {
      begun_ = std::chrono::steady_clock::now();
      text_ = metrics_.text();
    }
    return text_;
  }

 private:
  const Metrics& metrics_;
  Mutex mutex_;
  std::chrono::steady_clock::time_point begun_ LOCKSTEP_GUARDED_BY(mutex_) = {};
  std::string text_ LOCKSTEP_GUARDED_BY(mutex_);
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
    if (!row.queues) continue;
    routes.back().busy =
        [&model, path = row.pattern](const std::string& client) -> std::optional<HttpRefusal> {
      const auto full = model.check_room(client);
      if (!full) return std::nullopt;
      return to_http_refusal(path, *full);
    };
  }
  if (metrics != nullptr) {
    // Shared, since a std::function is copied.
    routes.push_back(HttpRoute{"GET", "/metrics",
                               [page = std::make_shared<MetricsPage>(*metrics)](
                                   const HttpRequest& request, HttpResponse& response) {
                                 response.send(200, Metrics::kContentType,
                                               page->text(request.arrived));
                               },
                               true});
  }
  return routes;
}

}  // namespace lockstep
