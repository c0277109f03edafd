#include "server/http/connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "server/http/networks.h"

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
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

Connection::Connection(uint64_t id, NewClient client, Edge& edge, Time now)
    : socket_(std::move(client.socket)),
      transport_(std::move(client.transport)),
      remote_address_(std::move(client.remote_address)),
      place_(std::move(client.place)),
      site_(std::move(client.site)),
      over_(client.over),
      edge_(edge),
      limits_(edge.limits),
      scanner_(limits_),
      began_(now),
      body_began_(now),
      outbox_(id, limits_, edge.mailbox, edge.answer_memory) {
  const bool shakes = transport_->needs_handshake();
  if (shakes) phase_ = Phase::kHandshake;
  deadline_ = now + (over_    ? limits_.over_limit_deadline
                     : shakes ? limits_.head_deadline
                              : limits_.idle_deadline);
}

void Connection::socket_ready(uint32_t epoll_events, Time now) {
  if ((epoll_events & (EPOLLERR | EPOLLHUP)) != 0) {
    cut();
    return;
  }
  if (phase_ == Phase::kHandshake) {
    shake_hands(now);
    return;
  }
  if ((epoll_events & EPOLLIN) != 0) receive(now);
  if (is_open() && (epoll_events & EPOLLRDHUP) != 0) peer_sends_no_more(now);
  if (is_open() && (epoll_events & EPOLLOUT) != 0) output_queued(now);
}

// Under the deadline that was set when the client connected, however the bytes drip.
void Connection::shake_hands(Time now) {
  const Transport::Outcome outcome = transport_->handshake();
  switch (outcome.status) {
    case Transport::Status::kBlocked:
      handshake_writes_ = outcome.wants_write;
      return;
    case Transport::Status::kDone:
      phase_ = Phase::kIdle;
      deadline_ = now + (over_ ? limits_.over_limit_deadline : limits_.idle_deadline);
      receive(now);  // the request may have come with the handshake's last bytes
      return;
    case Transport::Status::kEnded:
    case Transport::Status::kFailed:
    case Transport::Status::kWasted:
      break;
  }
  edge_.counters.add(HttpRejection::kHandshake);
  if (const std::string_view hint = transport_->hint_to_client(); !hint.empty()) {
    send(socket_.number(), hint.data(), hint.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    // Reads what it has sent, so that closing does not destroy the hint.
    recv(socket_.number(), edge_.receive_buffer.data(), edge_.receive_buffer.size(), MSG_DONTWAIT);
  }
  cut();
}

void Connection::receive(Time now) {
  if (phase_ == Phase::kServing || phase_ == Phase::kSending || has_waiting_input_) return;
  const Transport::Outcome outcome =
      transport_->receive(edge_.receive_buffer.data(), edge_.receive_buffer.size());
  switch (outcome.status) {
    case Transport::Status::kBlocked:
      return;
    case Transport::Status::kEnded:  // the client has left without a whole request
    case Transport::Status::kFailed:
      cut();
      return;
    case Transport::Status::kWasted:
      edge_.counters.add(HttpCut::kRecords);
      drop();
      return;
    case Transport::Status::kDone:
      break;
  }
  if (phase_ == Phase::kLingering) return;
  input_.append(edge_.receive_buffer.data(), outcome.bytes);
  read_requests(now);
}

// Goes as far as the bytes that are here allow. A loop, since refusals may be answered at once and
// any number of requests may lie in the input.
void Connection::read_requests(Time now) {
  int requests = 0;
  has_waiting_input_ = false;
  bool goes_on = true;
  while (goes_on && is_open()) {
    switch (phase_) {
      case Phase::kIdle:
        if (input_.empty()) return;
        if (++requests > kRequestsPerTurn) {
          has_waiting_input_ = true;
          outbox_.post(Notice::Kind::kOutput);  // comes back here
          return;
        }
        phase_ = Phase::kHead;
        began_ = now;
        limits_ = edge_.limits;
        deadline_ = now + (over_ ? limits_.over_limit_deadline : limits_.head_deadline);
        break;
      case Phase::kHead:
        goes_on = read_head(now);
        break;
      case Phase::kBody:
        goes_on = read_body(now);
        break;
      case Phase::kHandshake:
      case Phase::kServing:
      case Phase::kSending:
      case Phase::kLingering:
        return;
    }
  }
}

// False if more bytes are needed.
bool Connection::read_head(Time now) {
  const auto size = scanner_.scan(input_);
  if (!size) {
    refuse(size.error(), false, now);
    return true;
  }
  if (!*size) return false;
  auto head = parse_request_head(std::string_view(input_).substr(0, **size), limits_);
  if (!head) {
    refuse(head.error(), false, now);
    return true;
  }
  input_.erase(0, **size);
  head_ = std::move(*head);
  request_id_ = chosen_request_id();
  match_ = edge_.routes.match(head_.method, head_.target.raw_path);
  terms_ = {head_.minor_version, head_.keep_alive && !over_, edge_.cors.answer_headers(head_)};
  if (auto refusal = refusal_of_head()) {
    refuse(std::move(*refusal), true, now);
  } else if (edge_.cors.is_preflight(head_)) {
    answer_preflight(now);
  } else {
    begin_body(now);
  }
  return true;
}

void Connection::begin_body(Time now) {
  if (const auto begun = body_.begin(head_, limits_.body_bytes); !begun) {
    refuse(begun.error(), false, now);
    return;
  }
  phase_ = Phase::kBody;
  body_began_ = now;
  deadline_ = body_deadline();
  if (head_.expects_continue && head_.has_body() && input_.empty()) {
    outbox_.append(kContinue);
    flush(now);
  }
}

// The body's own, or the time at which what has come so far is too little for the least rate.
Connection::Time Connection::body_deadline() const {
  const Time end = body_began_ + limits_.body_deadline;
  if (limits_.body_bytes_per_second == 0) return end;
  const auto earned =
      std::chrono::milliseconds(body_.collected_bytes() * 1000 / limits_.body_bytes_per_second);
  return std::min(end, body_began_ + limits_.body_grace + earned);
}

bool Connection::read_body(Time now) {
  const auto used = body_.consume(input_);
  if (!used) {
    refuse(used.error(), false, now);
    return true;
  }
  input_.erase(0, *used);
  count_body_bytes(body_.collected_bytes());
  const auto may_hold = [&](const Network& holder) {
    return may_hold_body(body_bytes_counted_, holder.body_bytes, edge_.bodies_bytes,
                         edge_.limits.bodies_bytes);
  };
  if (!may_hold(network()) || !may_hold(site())) {
    refuse({503,
            "too many bytes of requests are waiting: try again, or send less at once",
            {{"Retry-After", "1"}}},
           false, now);
    return true;
  }
  if (body_.is_whole()) {
    admit(now);
    return true;
  }
  deadline_ = body_deadline();
  return false;
}

void Connection::admit(Time now) {
  if (match_.route->busy) {
    if (auto refusal = match_.route->busy(tenant())) {
      answer_refusal(std::move(*refusal), true, now);
      return;
    }
  }
  HttpRequest request;
  request.method = std::move(head_.method);
  request.path = std::move(head_.target.path);
  request.query = std::move(head_.target.query);
  request.headers = std::move(head_.fields);
  request.body = body_.take_body();
  request.remote_address = remote_address_;
  request.principal = principal_;
  request.tenant = tenant();
  request.request_id = request_id_;
  request.path_parameters = std::move(match_.parameters);
  request.nesting_max = limits_.nesting;
  request.arrived = now;

  AdmittedRequest admitted;
  admitted.client = principal_.empty() ? network_name() : principal_;
  // A site's health checks do not wait for its scrapes.
  if (principal_.empty() && !match_.route->always) admitted.site = site_.name();
  admitted.exchange = std::make_unique<Exchange>(std::move(request), *match_.route, terms_, outbox_,
                                                 edge_.is_draining, edge_.no_memory_answer, began_);
  ServingThreads& threads = match_.route->always ? edge_.reserved_threads : edge_.ordinary_threads;
  threads.submit(std::move(admitted));  // what throws until here leaves the request to fail()
  phase_ = Phase::kServing;
  deadline_.reset();
  is_serving_ = true;
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
  keep_alive_ = keep_alive;
  phase_ = Phase::kSending;
  deadline_.reset();
  sent_by_ = send_deadline(now);
  flush(now);
}

// However little the client takes at a time, and however often.
std::optional<Connection::Time> Connection::send_deadline(Time now) {
  if (limits_.answer_bytes_per_second == 0) return std::nullopt;
  const auto earned =
      std::chrono::milliseconds(outbox_.owed_bytes() * 1000 / limits_.answer_bytes_per_second);
  return now + limits_.write_deadline + earned;
}

void Connection::output_queued(Time now) {
  flush(now);
  if (is_open()) read_requests(now);
}

void Connection::flush(Time now) {
  bool progressed = false;
  switch (outbox_.flush(*transport_, progressed)) {
    case Outbox::Flush::kFailed:
      cut();
      return;
    case Outbox::Flush::kBlocked:
      is_blocked_ = true;
      if (phase_ != Phase::kBody && (progressed || !deadline_)) {
        deadline_ = now + limits_.write_deadline;
      }
      if (phase_ == Phase::kSending && sent_by_) deadline_ = std::min(*deadline_, *sent_by_);
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
    deadline_ = now + limits_.idle_deadline;
    scanner_.reset();
    head_ = {};
    match_ = {};
    terms_ = {};
    principal_.clear();
    request_id_.clear();
    return;
  }
  if (peer_is_done_) {
    cut();
    return;
  }
  transport_->end_sending();
  phase_ = Phase::kLingering;
  deadline_ = now + kLingerDeadline;
  input_ = {};
}

void Connection::peer_sends_no_more(Time) {
  // While a request is read, recv() says so when all bytes are taken.
  if (phase_ != Phase::kServing && phase_ != Phase::kSending) return;
  // The bytes before the end may hold further requests: they have their turn, until none is left.
  peer_is_done_ = true;
  outbox_.half_close();
}

void Connection::deadline_passed(Time now) {
  switch (phase_) {
    case Phase::kHandshake:
      edge_.counters.add(HttpCut::kHead);
      cut();
      break;
    case Phase::kHead:
      edge_.counters.add(HttpCut::kHead);
      refuse({408, "the request's head did not come in time"}, false, now);
      break;
    case Phase::kBody: {
      const bool out_of_time = now >= body_began_ + limits_.body_deadline;
      edge_.counters.add(out_of_time ? HttpCut::kBody : HttpCut::kRate);
      refuse({408, out_of_time ? "the request's body did not come in time"
                               : "the request's body came too slowly"},
             false, now);
      break;
    }
    case Phase::kIdle:
      edge_.counters.add(over_ ? HttpCut::kHead : HttpCut::kIdle);
      cut();
      break;
    case Phase::kServing:
    case Phase::kSending:
      edge_.counters.add(HttpCut::kWrite);
      drop();
      break;
    case Phase::kLingering:
      cut();
      break;
  }
}

void Connection::owes_too_much(HttpCut reason) {
  if (!is_open()) return;
  edge_.counters.add(reason);
  drop();
}

// Cuts a client that takes nothing. Merely closed, the socket would stay with the kernel, with all
// that it owes, for minutes.
void Connection::drop() {
  const linger at_once{1, 0};
  setsockopt(socket_.number(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  cut();
}

void Connection::turn_away(Time now) {
  edge_.counters.add(over_.value_or(HttpRejection::kConnections));
  if (phase_ == Phase::kIdle || phase_ == Phase::kHead) {
    answer_refusal({503, "too many connections are open: try again", {{"Retry-After", "1"}}}, false,
                   now);
  }
  cut();
}

void Connection::cut() {
  socket_.close();
  deadline_.reset();
  outbox_.close();
  if (!is_serving_) release_body_bytes();
}

uint32_t Connection::wanted_events() const {
  const uint32_t events = is_blocked_ ? EPOLLOUT : 0U;
  switch (phase_) {
    case Phase::kHandshake:
      return handshake_writes_ ? EPOLLOUT : EPOLLIN;
    case Phase::kIdle:
      return has_waiting_input_ ? events : events | EPOLLIN;
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

void Connection::body_released() {
  count_body_bytes(is_serving_ ? outbox_.kept_body_bytes() : 0);
}

void Connection::count_body_bytes(size_t bytes) {
  for (size_t* const sum : {&edge_.bodies_bytes, &network().body_bytes, &site().body_bytes}) {
    *sum += bytes;
    *sum -= body_bytes_counted_;
  }
  body_bytes_counted_ = bytes;
}

}  // namespace lockstep
