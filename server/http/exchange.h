// One whole request and the answer to it, from its admission until its handler has returned.
#pragma once

#include <any>
#include <atomic>
#include <chrono>
#include <memory>
#include <utility>

#include "server/http/http_options.h"
#include "server/http/http_request.h"
#include "server/http/http_response.h"
#include "server/http/http_route.h"
#include "server/http/httplib_writer.h"
#include "server/http/outbox.h"

namespace lockstep {

// The terms of the connection that an answer goes over, which the answer must state.
struct ConnectionTerms {
  int minor_version = 1;                                 // the client's HTTP/1.x
  bool keep_alive = true;                                // as the client asked
  std::multimap<std::string, std::string> headers = {};  // those that every answer bears (CORS)
};

// Adds what every answer bears: X-Request-Id, and Connection where it must be said.
void add_connection_headers(HttpAnswer& answer, const ConnectionTerms& terms,
                            const std::string& request_id);

// The answer, with status 503, where there is no memory for the answer itself.
HttpAnswer no_memory_answer(const HttpOptions& options);

class Exchange final : public HttpResponse {
 public:
  // `outbox`, `route`, `is_draining` and `no_memory_answer` (a whole answer) outlive it. While
  // `is_draining`, no connection is kept.
  Exchange(HttpRequest request, const HttpRoute& route, ConnectionTerms terms, Outbox& outbox,
           const std::atomic<bool>& is_draining, std::string_view no_memory_answer,
           std::chrono::steady_clock::time_point began);

  // Runs the route's handler, in the calling thread, and completes the answer. What the handler
  // throws becomes status 500 (503 where it had no memory), or ends the connection if the answer
  // has begun. Throws nothing.
  void serve(HttplibWriter& writer, const HttpOptions& options);
  // The outbox that is told of the end of serve(); the exchange need not be there any more.
  Outbox& outbox() { return outbox_; }

  // The size of the request's body, as it came.
  size_t body_bytes() const { return body_bytes_; }

  // After serve(): whether another request may follow on the connection.
  bool keep_alive() const { return terms_.keep_alive; }

  void set_header(std::string name, std::string value) override;
  void release_body(size_t kept_bytes) override;
  void send(int status, std::string_view content_type, std::string body) override;
  bool start_stream(int status, std::string_view content_type) override;
  bool write(std::string bytes) override;
  bool client_gone() const override { return outbox_.client_gone(); }
  void on_client_gone(std::function<void()> callback) override;
  void cut_too_slow() override { outbox_.cut_too_slow(); }
  void set_note(std::any note) override { note_ = std::move(note); }

 private:
  enum class Progress { kNothing, kStreaming, kWhole };

  enum class Failure { kNone, kBroken, kNoMemory };

  void run_handler();
  void complete(const HttpOptions& options);
  void complete_without_memory();
  void report(const HttpOptions& options);
  std::string head_and_body(HttpAnswer answer);

  HttpRequest request_;
  const size_t body_bytes_;
  const HttpRoute& route_;
  ConnectionTerms terms_;
  Outbox& outbox_;
  const std::atomic<bool>& is_draining_;
  const std::string_view no_memory_answer_;
  const std::chrono::steady_clock::time_point began_;

  HttplibWriter* writer_ = nullptr;  // set while serve() runs
  std::multimap<std::string, std::string> headers_;
  Progress progress_ = Progress::kNothing;
  Failure failure_ = Failure::kNone;  // what the handler threw
  int status_ = 0;
  uint64_t sent_bytes_ = 0;
  std::any note_;  // for report()
};

}  // namespace lockstep
