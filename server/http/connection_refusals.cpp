// The answers that a connection gives by itself, without a handler.
#include <chrono>
#include <utility>

#include "engine/base/log.h"
#include "server/http/connection.h"

namespace lockstep {
namespace {

// Under which reason the refusal of a request is counted.
HttpRejection rejection_of_status(int status) {
  switch (status) {
    case 400:
      return HttpRejection::kMalformed;
    case 401:
    case 403:
      return HttpRejection::kKey;
    case 404:
    case 405:
      return HttpRejection::kUnknown;
    case 413:
    case 414:
    case 431:
      return HttpRejection::kTooLarge;
    case 415:
      return HttpRejection::kEncoding;
    case 429:
      return HttpRejection::kLimit;
    case 503:
      return HttpRejection::kBusy;
    default:
      return HttpRejection::kProtocol;
  }
}

}  // namespace

// Everything that can be said before the body is read. What is there and what is not is said only
// to those who may know.
std::optional<HttpRefusal> Connection::refusal_of_head() {
  const HttpRoute* route = match_.route;
  if (over_ && (route == nullptr || !route->always)) {
    return HttpRefusal{503, "too many connections are open: try again", {{"Retry-After", "1"}}};
  }
  if (edge_.cors.is_preflight(head_)) return std::nullopt;
  if (edge_.options.authorize) {
    auto principal = edge_.options.authorize(
        {head_.method, route != nullptr ? std::string_view(route->pattern) : "", head_.fields,
         remote_address_, route != nullptr && route->without_key});
    if (!principal) return std::move(principal.error());
    principal_ = std::move(*principal);
  }
  if (route != nullptr) return std::nullopt;
  const std::string what = head_.method + " " + head_.target.raw_path;
  if (match_.allow.empty()) {
    return HttpRefusal{404, "nothing is served at " + what + ": check the URL"};
  }
  return HttpRefusal{
      405, what + " is not served: allowed are " + match_.allow, {{"Allow", match_.allow}}};
}

void Connection::answer_preflight(Time now) {
  HttpAnswer answer;
  answer.status = 204;
  answer.headers = Cors::preflight_headers(head_);
  answer_without_handler(std::move(answer), true, now);
}

// Answers without a handler. `may_keep`: the head was sound, so that the next request's begin is
// known, unless a body follows.
void Connection::refuse(HttpRefusal refusal, bool may_keep, Time now) {
  if (refusal.status != 408) {
    edge_.counters.add(over_ && refusal.status == 503 ? *over_
                                                      : rejection_of_status(refusal.status));
  }
  answer_refusal(std::move(refusal), may_keep, now);
}

void Connection::answer_refusal(HttpRefusal refusal, bool may_keep, Time now) {
  HttpAnswer answer;
  answer.status = refusal.status;
  answer.content_type = "application/json";
  const std::string_view path =
      head_.target.path.empty() ? path_at_sight(input_) : head_.target.path;
  answer.body = refusal.body.empty()
                    ? edge_.options.error_body(path, refusal.status, refusal.message)
                    : std::move(refusal.body);
  answer.headers = std::move(refusal.headers);
  if (!may_keep) head_.keep_alive = false;
  answer_without_handler(std::move(answer), may_keep, now);
}

void Connection::answer_without_handler(HttpAnswer answer, bool may_keep, Time now) {
  if (request_id_.empty()) request_id_ = edge_.make_request_id();
  const bool is_whole = phase_ == Phase::kBody && body_.is_whole();
  const bool body_follows = head_.has_body() && !is_whole;
  if (phase_ == Phase::kBody) body_.take_body();  // its memory
  terms_.keep_alive = may_keep && terms_.keep_alive && !body_follows && !edge_.is_draining;
  const int status = answer.status;
  add_connection_headers(answer, terms_, request_id_);
  const std::string bytes =
      edge_.writer.bytes(may_keep ? std::string_view(head_.method) : "GET", std::move(answer));
  outbox_.append(bytes);
  record(status, bytes.size(), is_whole);
  finish_request(terms_.keep_alive, now);
}

void Connection::fail(const std::exception& error, Time now) {
  spdlog::error("A connection from {} ends: {}", remote_address_, error.what());
  if (!is_open()) return;
  edge_.counters.add(HttpRejection::kMemory);
  if (phase_ != Phase::kIdle && phase_ != Phase::kHead && phase_ != Phase::kBody) {
    drop();
    return;
  }
  body_.take_body();
  std::string().swap(input_);
  outbox_.append_last(edge_.no_memory_answer);
  finish_request(false, now);
  try {
    record(503, edge_.no_memory_answer.size(), false);
  } catch (const std::exception&) {  // the answer goes all the same
  }
}

void Connection::record(int status, size_t sent_bytes, bool was_whole) const {
  if (!edge_.options.on_finished) return;
  HttpRecord record;
  record.method = head_.method;
  record.route = match_.route != nullptr ? std::string_view(match_.route->pattern) : "";
  record.path = head_.target.path;
  record.request_id = request_id_;
  record.remote_address = remote_address_;
  record.principal = principal_;
  record.status = status;
  record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  record.sent_bytes = sent_bytes;
  record.was_whole = was_whole;
  edge_.options.on_finished(record);
}

}  // namespace lockstep
