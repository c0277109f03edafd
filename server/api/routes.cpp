#include "server/api/routes.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "engine/base/mutex.h"
#include "server/api/anthropic/endpoints.h"
#include "server/api/dialect.h"
#include "server/api/native/endpoints.h"
#include "server/api/openai/endpoints.h"

namespace lockstep {
namespace {

// The part of the server that an endpoint uses.
enum class Use {
  kGenerate,  // a place in the engine's queue, and its key's allowance
  kPrepare,   // its key's allowance
  kRead,
  kAlways,  // nothing: it is served even while all threads are busy
};

struct Row {
  const char* method;
  const char* pattern;
  Endpoint endpoint;
  Use use;
};

constexpr Row kRows[] = {
    {"POST", "/v1/completions", post_completions, Use::kGenerate},
    {"POST", "/v1/chat/completions", post_chat_completions, Use::kGenerate},
    {"POST", "/v1/embeddings", post_embeddings, Use::kGenerate},
    {"POST", "/v1/responses", post_responses, Use::kGenerate},
    {"POST", "/v1/messages", post_messages, Use::kGenerate},
    {"POST", "/v1/messages/count_tokens", post_count_tokens, Use::kPrepare},
    {"GET", "/v1/models", get_models, Use::kRead},
    {"GET", "/v1/models/:id*", get_model, Use::kRead},
    {"POST", "/tokenize", post_tokenize, Use::kPrepare},
    {"POST", "/detokenize", post_detokenize, Use::kPrepare},
    {"GET", "/tokenizer_info", get_tokenizer_info, Use::kRead},
    {"POST", "/apply-template", post_apply_template, Use::kPrepare},
    {"GET", "/openapi.json", get_openapi, Use::kRead},
    {"GET", "/version", get_version, Use::kRead},
    {"GET", "/health/live", get_live, Use::kAlways},
    {"GET", "/health/ready", get_ready, Use::kAlways},
    {"GET", "/health", get_ready, Use::kAlways},
};

// Scrapes that come at once share a page: one that waited while a page was begun and written gets
// that page.
class MetricsPage {
 public:
  explicit MetricsPage(const Metrics& metrics) : metrics_(metrics) {}

  // As it was at a time after `arrived`.
  std::string text(std::chrono::steady_clock::time_point arrived) {
    const MutexLock lock(mutex_);
    if (begun_ <= arrived) {
      const auto now = std::chrono::steady_clock::now();
      text_ = metrics_.text();
      begun_ = now;
    }
    return text_;
  }

 private:
  const Metrics& metrics_;
  Mutex mutex_;
  std::chrono::steady_clock::time_point begun_ LOCKSTEP_GUARDED_BY(mutex_) = {};
  std::string text_ LOCKSTEP_GUARDED_BY(mutex_);
};

ApiResult<KeyLease> enter(const Row& row, ServedModel& model, const HttpRequest& request,
                          HttpResponse& response) {
  if (row.use != Use::kGenerate && row.use != Use::kPrepare) return KeyLease();
  return KeyLease::enter(model, request, response);
}

ApiResult<void> answer(const Row& row, ServedModel& model, const HttpRequest& request,
                       HttpResponse& response) {
  auto key = enter(row, model, request, response);
  if (!key) return std::unexpected(std::move(key.error()));
  Call call{model, request, response, std::move(*key)};
  auto answered = row.endpoint(call);
  if (call.note) response.set_note(std::move(*call.note));
  // The key's lease ends here at the latest, before the bytes of an error: a client that has them
  // may ask again, and finds its place free.
  return answered;
}

void serve(const Row& row, ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  const auto answered = answer(row, model, request, response);
  if (!answered) send_error(response, answered.error(), error_object_of(row.pattern));
}

HttpRoute make_route(const Row& row, ServedModel& model) {
  HttpRoute route{row.method, row.pattern,
                  [&row, &model](const HttpRequest& request, HttpResponse& response) {
                    serve(row, model, request, response);
                  },
                  row.use == Use::kAlways};
  if (row.use == Use::kGenerate) {
    route.busy = [&row, &model](const std::string& tenant) -> std::optional<HttpRefusal> {
      const auto full = model.check_room(tenant);
      if (!full) return std::nullopt;
      return to_http_refusal(*full, error_object_of(row.pattern));
    };
  }
  return route;
}

// Shared, since a std::function is copied.
HttpRoute make_metrics_route(const Metrics& metrics) {
  return HttpRoute{"GET", "/metrics",
                   [page = std::make_shared<MetricsPage>(metrics)](const HttpRequest& request,
                                                                   HttpResponse& response) {
                     response.send(200, Metrics::kContentType, page->text(request.arrived));
                   },
                   true};
}

}  // namespace

std::vector<HttpRoute> make_routes(ServedModel& model, const Metrics* metrics) {
  std::vector<HttpRoute> routes;
  for (const Row& row : kRows) routes.push_back(make_route(row, model));
  if (metrics != nullptr) routes.push_back(make_metrics_route(*metrics));
  return routes;
}

}  // namespace lockstep
