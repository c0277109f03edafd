#include "server/http/connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace lockstep {
namespace {

constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr std::chrono::milliseconds kLingerDeadline{2'000};
constexpr size_t kRequestIdBytesMax = 128;
// Refusals cost the client a few bytes each; after so many in a row the others get their turn.
constexpr int kRequestsPerTurn = 16;

bool is_usable_request_id(std::string_view id) {
  return !id.empty() && id.size() <= kRequestIdBytesMax &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

}  // namespace

std::string Edge::make_request_id() {
  return fmt::format("{:016x}{:016x}", random(), random());
}

Connection::Connection(uint64_t id, Descriptor socket, std::string remote_address, Edge& edge,
                       Time now)
    : id_(id),
      socket_(std::move(socket)),
      remote_address_(std::move(remote_address)),
      edge_(edge),
      deadline_(now + edge.options.limits.idle_deadline),
      scanner_(edge.options.limits),
      began_(now),
      outbox_(id, edge.options.limits, edge.mailbox) {}

void Connection::socket_ready(uint32_t epoll_events, Time now) {
  if ((epoll_events & (EPOLLERR | EPOLLHUP)) != 0) {
    cut();
    return;
  }
  if ((epoll_events & EPOLLIN) != 0) receive(now);
  if (is_open() && (epoll_events & EPOLLRDHUP) != 0) peer_sends_no_more(now);
  if (is_open() && (epoll_events & EPOLLOUT) != 0) output_queued(now);
}

void Connection::receive(Time now) {
  if (phase_ == Phase::kServing || phase_ == Phase::kSending) return;
  const ssize_t count =
      recv(socket_.number(), edge_.receive_buffer.data(), edge_.receive_buffer.size(), 0);
  if (count < 0) {
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) cut();
    return;
  }
  if (count == 0) {  // the client has left without a whole request
    cut();
    return;
  }
  if (phase_ == Phase::kLingering) return;
  input_.append(edge_.receive_buffer.data(), static_cast<size_t>(count));
  read_requests(now);
}

// Goes as far as the bytes that are here allow. A loop, since refusals may be answered at once and
// any number of requests may lie in the input.
void Connection::read_requests(Time now) {
  const HttpLimits& limits = edge_.options.limits;
  int requests = 0;
  has_waiting_input_ = false;
  bool goes_on = true;
  while (goes_on && is_open()) {
    switch (phase_) {
      case Phase::kIdle:
        if (input_.empty()) return;
        if (++requests > kRequestsPerTurn) {
          has_waiting_input_ = true;
          edge_.mailbox.post({id_, Notice::Kind::kOutput});  // comes back here
          return;
        }
        phase_ = Phase::kHead;
        began_ = now;
        deadline_ = now + limits.head_deadline;
        break;
      case Phase::kHead:
        goes_on = read_head(now);
        break;
      case Phase::kBody:
        goes_on = read_body(now);
        break;
      case Phase::kServing:
      case Phase::kSending:
      case Phase::kLingering:
        return;
    }
  }
}

// False if more bytes are needed.
bool Connection::read_head(Time now) {
  const HttpLimits& limits = edge_.options.limits;
  const auto size = scanner_.scan(input_);
  if (!size) {
    refuse(size.error(), false, now);
    return true;
  }
  if (!*size) return false;
  auto head = parse_request_head(std::string_view(input_).substr(0, **size), limits);
  input_.erase(0, **size);
  if (!head) {
    refuse(head.error(), false, now);
    return true;
  }
  head_ = std::move(*head);
  request_id_ = chosen_request_id();
  match_ = edge_.routes.match(head_.method, head_.target.raw_path);
  const std::string what = head_.method + " " + head_.target.raw_path;
  if (match_.route == nullptr && match_.allow.empty()) {
    refuse({404, "nothing is served at " + what + ": check the URL"}, true, now);
  } else if (match_.route == nullptr) {
    refuse({405, what + " is not served: allowed are " + match_.allow}, true, now, match_.allow);
  } else {
    begin_body(now);
  }
  return true;
}

void Connection::begin_body(Time now) {
  const HttpLimits& limits = edge_.options.limits;
  if (const auto begun = body_.begin(head_, limits.body_bytes); !begun) {
    refuse(begun.error(), false, now);
    return;
  }
  phase_ = Phase::kBody;
  deadline_ = now + limits.body_deadline;
  if (head_.expects_continue && head_.has_body() && input_.empty()) {
    outbox_.append(kContinue);
    flush(now);
  }
}

bool Connection::read_body(Time now) {
  const auto used = body_.consume(input_);
  if (!used) {
    refuse(used.error(), false, now);
    return true;
  }
  input_.erase(0, *used);
  edge_.bodies_bytes += body_.collected_bytes() - body_bytes_counted_;
  body_bytes_counted_ = body_.collected_bytes();
  if (edge_.bodies_bytes > edge_.options.limits.bodies_bytes) {
    refuse({503, "too many bytes of requests are waiting: try again"}, false, now);
    return true;
  }
  if (!body_.is_whole()) return false;
  admit();
  return true;
}

void Connection::admit() {
  HttpRequest request;
  request.method = std::move(head_.method);
  request.path = std::move(head_.target.path);
  request.query = std::move(head_.target.query);
  request.headers = std::move(head_.fields);
  request.body = body_.take_body();
  request.remote_address = remote_address_;
  request.request_id = request_id_;
  request.path_parameters = std::move(match_.parameters);

  phase_ = Phase::kServing;
  deadline_.reset();
  is_serving_ = true;
  const ConnectionTerms terms{head_.minor_version, head_.keep_alive};
  AdmittedRequest admitted;
  admitted.connection = id_;
  admitted.exchange = std::make_unique<Exchange>(std::move(request), *match_.route, terms, outbox_,
                                                 edge_.is_draining, began_);
  ServingThreads& threads = match_.route->always ? edge_.reserved_threads : edge_.ordinary_threads;
  threads.submit(std::move(admitted));
}

// Answers without a handler. `may_keep`: the head was sound, so that the next request's begin is
// known, unless a body follows.
void Connection::refuse(const HttpRefusal& refusal, bool may_keep, Time now,
                        const std::string& allow) {
  if (request_id_.empty()) request_id_ = edge_.make_request_id();
  const bool keep_alive = may_keep && head_.keep_alive && !head_.has_body() && !edge_.is_draining;
  HttpAnswer answer;
  answer.status = refusal.status;
  answer.content_type = "application/json";
  answer.body = edge_.options.error_body(refusal.status, refusal.message);
  if (!allow.empty()) answer.headers.emplace("Allow", allow);
  add_connection_headers(answer, {may_keep ? head_.minor_version : 1, keep_alive}, request_id_);
  const std::string bytes =
      edge_.writer.bytes(may_keep ? std::string_view(head_.method) : "GET", std::move(answer));
  outbox_.append(bytes);
  record_refusal(refusal.status, bytes.size());
  finish_request(keep_alive, now);
}

void Connection::record_refusal(int status, size_t sent_bytes) const {
  if (!edge_.options.on_finished) return;
  HttpRecord record;
  record.method = head_.method;
  record.route = match_.route != nullptr ? std::string_view(match_.route->pattern) : "";
  record.path = head_.target.path;
  record.request_id = request_id_;
  record.remote_address = remote_address_;
  record.status = status;
  record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  record.sent_bytes = sent_bytes;
  edge_.options.on_finished(record);
}

void Connection::answered(bool keep_alive, Time now) {
  is_serving_ = false;
  release_body_bytes();
  if (!is_open()) return;
  finish_request(keep_alive, now);
  read_requests(now);
}

// The answer to the current request is in the outbox.
void Connection::finish_request(bool keep_alive, Time now) {
  release_body_bytes();
  keep_alive_ = keep_alive && !peer_is_done_;
  phase_ = Phase::kSending;
  deadline_.reset();
  flush(now);
}

void Connection::output_queued(Time now) {
  flush(now);
  if (is_open()) read_requests(now);
}

void Connection::flush(Time now) {
  bool progressed = false;
  switch (outbox_.flush(socket_.number(), progressed)) {
    case Outbox::Flush::kFailed:
      cut();
      return;
    case Outbox::Flush::kBlocked:
      is_blocked_ = true;
      if (phase_ != Phase::kBody && (progressed || !deadline_)) {
        deadline_ = now + edge_.options.limits.write_deadline;
      }
      return;
    case Outbox::Flush::kDrained:
      break;
  }
  is_blocked_ = false;
  if (phase_ == Phase::kServing) deadline_.reset();
  if (phase_ == Phase::kSending) answer_sent(now);
}

void Connection::answer_sent(Time now) {
  if (keep_alive_ && !edge_.is_draining) {
    phase_ = Phase::kIdle;
    deadline_ = now + edge_.options.limits.idle_deadline;
    scanner_.reset();
    head_ = {};
    match_ = {};
    request_id_.clear();
    return;
  }
  if (peer_is_done_) {
    cut();
    return;
  }
  shutdown(socket_.number(), SHUT_WR);
  phase_ = Phase::kLingering;
  deadline_ = now + kLingerDeadline;
  input_ = {};
}

void Connection::peer_sends_no_more(Time) {
  // While a request is read, recv() says so when all bytes are taken.
  if (phase_ != Phase::kServing && phase_ != Phase::kSending) return;
  peer_is_done_ = true;
  keep_alive_ = false;
  outbox_.half_close();
}

void Connection::deadline_passed(Time now) {
  switch (phase_) {
    case Phase::kHead:
      refuse({408, "the request's head did not come in time"}, false, now);
      break;
    case Phase::kBody:
      refuse({408, "the request's body did not come in time"}, false, now);
      break;
    case Phase::kIdle:
    case Phase::kServing:
    case Phase::kSending:
    case Phase::kLingering:
      cut();
      break;
  }
}

void Connection::cut() {
  socket_.close();
  deadline_.reset();
  outbox_.close();
  if (!is_serving_) release_body_bytes();
}

uint32_t Connection::wanted_events() const {
  uint32_t events = is_blocked_ ? EPOLLOUT : 0U;
  switch (phase_) {
    case Phase::kIdle:
    case Phase::kHead:
    case Phase::kBody:
    case Phase::kLingering:
      return events | EPOLLIN;
    case Phase::kServing:
    case Phase::kSending:
      return peer_is_done_ ? events : events | EPOLLRDHUP;
  }
  return events;
}

std::string Connection::chosen_request_id() {
  const std::string_view sent = head_.field("x-request-id");
  return is_usable_request_id(sent) ? std::string(sent) : edge_.make_request_id();
}

void Connection::release_body_bytes() {
  edge_.bodies_bytes -= std::exchange(body_bytes_counted_, 0);
}

}  // namespace lockstep
