#include "server/api/routes.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "engine/base/mutex.h"
#include "server/api/anthropic/endpoints.h"
#include "server/api/native/endpoints.h"
#include "server/api/openai/endpoints.h"

namespace lockstep {
namespace {

constexpr std::string_view kMessages = "/v1/messages";

struct StatusCode {
  int status;
  std::string_view code;
};

// Codes for what never reaches an endpoint.
constexpr StatusCode kStatusCodes[] = {
    {400, "bad_request"},
    {401, "invalid_api_key"},
    {403, "host_not_allowed"},
    {404, "not_found"},
    {405, "method_not_allowed"},
    {408, "request_timeout"},
    {411, "length_required"},
    {413, "payload_too_large"},
    {414, "uri_too_long"},
    {415, "unsupported_media_type"},
    {417, "expectation_failed"},
    {429, "rate_limit_exceeded"},
    {431, "headers_too_large"},
    {500, "internal_error"},
    {501, "not_implemented"},
    {503, "overloaded"},
    {505, "http_version_not_supported"},
};

bool is_anthropics(std::string_view path) {
  if (!path.starts_with(kMessages)) return false;
  path.remove_prefix(kMessages.size());
  return path.empty() || path.front() == '/';
}

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
    {"POST", "/v1/completions/render", post_completions_render, Use::kPrepare},
    {"POST", "/v1/chat/completions/render", post_chat_completions_render, Use::kPrepare},
    {"POST", "/v1/embeddings", post_embeddings, Use::kGenerate},
    {"POST", "/v1/rerank", post_rerank, Use::kGenerate},
    {"POST", "/rerank", post_rerank, Use::kGenerate},
    {"POST", "/v1/responses", post_responses, Use::kGenerate},
    {"POST", "/v1/messages", post_messages, Use::kGenerate},
    {"POST", "/v1/messages/count_tokens", post_count_tokens, Use::kPrepare},
    {"GET", "/v1/models", get_models, Use::kRead},
    {"GET", "/v1/models/:id*", get_model, Use::kRead},
    {"POST", "/tokenize", post_tokenize, Use::kPrepare},
    {"POST", "/detokenize", post_detokenize, Use::kPrepare},
    {"GET", "/tokenizer_info", get_tokenizer_info, Use::kRead},
    {"POST", "/apply-template", post_apply_template, Use::kPrepare},
    {"GET", "/slots", get_slots, Use::kRead},
    {"POST", "/slots/:id", post_slot, Use::kGenerate},
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
      const auto full = model.check_queue(tenant);
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

ErrorObject error_object_of(std::string_view path) {
  return is_anthropics(path) ? anthropic_error_object : error_object;
}

void send_error(HttpResponse& response, const ApiError& error, ErrorObject object) {
  if (error.retry_after_seconds) {
    response.set_header("Retry-After", std::to_string(*error.retry_after_seconds));
  }
  response.send(error.status, "application/json", to_text(object(error)));
}

HttpRefusal to_http_refusal(const ApiError& error, ErrorObject object) {
  HttpRefusal refusal{.status = error.status, .message = error.message};
  if (error.retry_after_seconds) {
    refusal.headers.emplace("Retry-After", std::to_string(*error.retry_after_seconds));
  }
  refusal.body = to_text(object(error));
  return refusal;
}

std::string http_error_body(std::string_view path, int status, std::string_view message) {
  ApiError error{.status = status, .message = std::string(message)};
  if (is_anthropics(path)) return to_text(anthropic_error_object(error));
  if (status >= 500) error.type = "server_error";
  if (status == 401) error.type = "authentication_error";
  if (status == 429) error.type = "rate_limit_error";
  for (const StatusCode& row : kStatusCodes) {
    if (row.status == status) error.code = std::string(row.code);
  }
  return to_text(error_object(error));
}

std::vector<HttpRoute> make_routes(ServedModel& model, const Metrics* metrics) {
  std::vector<HttpRoute> routes;
  for (const Row& row : kRows) routes.push_back(make_route(row, model));
  if (metrics != nullptr) routes.push_back(make_metrics_route(*metrics));
  return routes;
}

}  // namespace lockstep
