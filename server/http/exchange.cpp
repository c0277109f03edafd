#include "server/http/exchange.h"

#include <exception>
#include <new>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/log.h"

namespace lockstep {
namespace {

constexpr std::string_view kLastChunk = "0\r\n\r\n";
constexpr int kClientClosedRequest = 499;  // as nginx writes it into its log; never sent

constexpr const char* kNoMemoryRetrySeconds = "5";
constexpr std::string_view kNoMemoryMessage =
    "the server has no memory for this request: try again later, or ask for less at once";

std::string chunk(std::string_view bytes) {
  return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

}  // namespace

void add_connection_headers(HttpAnswer& answer, const ConnectionTerms& terms,
                            const std::string& request_id) {
  answer.headers.emplace("X-Request-Id", request_id);
  answer.headers.insert(terms.headers.begin(), terms.headers.end());
  if (!terms.keep_alive) {
    answer.headers.emplace("Connection", "close");
  } else if (terms.minor_version == 0) {
    answer.headers.emplace("Connection", "keep-alive");
  }
}

HttpAnswer no_memory_answer(const HttpOptions& options) {
  HttpAnswer answer;
  answer.status = 503;
  answer.content_type = "application/json";
  answer.body = options.error_body("", 503, kNoMemoryMessage);
  answer.headers.emplace("Retry-After", kNoMemoryRetrySeconds);
  add_connection_headers(answer, {.minor_version = 1, .keep_alive = false}, "no-memory");
  return answer;
}

Exchange::Exchange(HttpRequest request, const HttpRoute& route, ConnectionTerms terms,
                   Outbox& outbox, const std::atomic<bool>& is_draining,
                   std::string_view no_memory_answer, std::chrono::steady_clock::time_point began)
    : request_(std::move(request)),
      body_bytes_(request_.body.size()),
      route_(route),
      terms_(std::move(terms)),
      outbox_(outbox),
      is_draining_(is_draining),
      no_memory_answer_(no_memory_answer),
      began_(began) {}

void Exchange::serve(HttplibWriter& writer, const HttpOptions& options) {
  writer_ = &writer;
  if (!outbox_.is_closed()) run_handler();
  outbox_.on_client_gone(nullptr);
  try {
    complete(options);
  } catch (const std::exception& error) {
    spdlog::error("No answer could be made for request {}: {}", request_.request_id, error.what());
    complete_without_memory();
  }
  writer_ = nullptr;
  try {
    report(options);
  } catch (const std::exception& error) {
    spdlog::error("Request {} was not logged: {}", request_.request_id, error.what());
  }
}

void Exchange::report(const HttpOptions& options) {
  if (!options.on_finished) return;
  HttpRecord record;
  record.method = request_.method;
  record.route = route_.pattern;
  record.path = request_.path;
  record.request_id = request_.request_id;
  record.remote_address = request_.remote_address;
  record.principal = request_.principal;
  record.status = status_;
  record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  record.sent_bytes = sent_bytes_;
  record.client_gone = client_gone();
  record.note = std::move(note_);
  options.on_finished(record);
}

void Exchange::run_handler() {
  const auto note = [&](Failure failure, const std::exception& error) {
    failure_ = failure;
    spdlog::error("The handler of {} {} threw for request {}: {}", request_.method, route_.pattern,
                  request_.request_id, error.what());
  };
  try {
    route_.handler(request_, *this);
  } catch (const std::bad_alloc& error) {
    note(Failure::kNoMemory, error);
  } catch (const std::exception& error) {
    note(Failure::kBroken, error);
  }
}

void Exchange::complete(const HttpOptions& options) {
  if (progress_ == Progress::kStreaming) {
    // Without its last chunk the client sees that an answer was cut.
    const bool is_whole = failure_ == Failure::kNone && !client_gone();
    if (!is_whole) terms_.keep_alive = false;
    if (is_whole && terms_.minor_version == 1 && request_.method != "HEAD") {
      outbox_.append(kLastChunk);
      sent_bytes_ += kLastChunk.size();
    }
    return;
  }
  if (progress_ == Progress::kWhole) return;
  if (client_gone()) {
    status_ = kClientClosedRequest;
    terms_.keep_alive = false;
    return;
  }
  headers_.clear();
  terms_.keep_alive = false;
  if (failure_ == Failure::kNoMemory) {
    headers_.emplace("Retry-After", kNoMemoryRetrySeconds);
    send(503, "application/json", options.error_body(request_.path, 503, kNoMemoryMessage));
  } else {
    send(500, "application/json",
         options.error_body(request_.path, 500, "the server failed on this request"));
  }
}

// Sends the answer that was made when the server started; nothing where an answer has begun.
void Exchange::complete_without_memory() {
  terms_.keep_alive = false;
  if (progress_ != Progress::kNothing) return;
  progress_ = Progress::kWhole;
  status_ = 503;
  sent_bytes_ = no_memory_answer_.size();
  outbox_.append_last(no_memory_answer_);
}

std::string Exchange::head_and_body(HttpAnswer answer) {
  if (is_draining_.load(std::memory_order_acquire)) terms_.keep_alive = false;
  status_ = answer.status;
  answer.headers = std::move(headers_);
  add_connection_headers(answer, terms_, request_.request_id);
  return writer_->bytes(request_.method, std::move(answer));
}

void Exchange::set_header(std::string name, std::string value) {
  headers_.emplace(std::move(name), std::move(value));
}

void Exchange::release_body(size_t kept_bytes) {
  outbox_.free_text(std::move(request_.body));
  outbox_.tell_body_released(kept_bytes);
}

void Exchange::send(int status, std::string_view content_type, std::string body) {
  CHECK(progress_ == Progress::kNothing, "a second answer, with status {}, to {} {}", status,
        request_.method, request_.path);
  HttpAnswer answer;
  answer.status = status;
  answer.content_type = content_type;
  answer.body = std::move(body);
  std::string bytes = head_and_body(std::move(answer));
  outbox_.append(bytes);
  progress_ = Progress::kWhole;
  sent_bytes_ += bytes.size();
  outbox_.free_text(std::move(bytes));
}

bool Exchange::start_stream(int status, std::string_view content_type) {
  CHECK(progress_ == Progress::kNothing, "a second answer, with status {}, to {} {}", status,
        request_.method, request_.path);
  if (terms_.minor_version == 0) {
    terms_.keep_alive = false;  // HTTP/1.0 knows no chunks: the connection's end is the body's
  } else {
    headers_.emplace("Transfer-Encoding", "chunked");
  }
  HttpAnswer answer;
  answer.status = status;
  answer.content_type = content_type;
  answer.is_streamed = true;
  const std::string bytes = head_and_body(std::move(answer));
  const bool is_there = outbox_.write(bytes);
  progress_ = Progress::kStreaming;
  sent_bytes_ += bytes.size();
  return is_there;
}

bool Exchange::write(std::string bytes) {
  CHECK(progress_ == Progress::kStreaming, "write() to {} {} before start_stream()",
        request_.method, request_.path);
  if (bytes.empty() || request_.method == "HEAD") return !client_gone();
  if (terms_.minor_version > 0) bytes = chunk(bytes);
  sent_bytes_ += bytes.size();
  const bool is_there = outbox_.write(bytes);
  outbox_.free_text(std::move(bytes));
  return is_there;
}

void Exchange::on_client_gone(std::function<void()> callback) {
  outbox_.on_client_gone(std::move(callback));
}

}  // namespace lockstep
