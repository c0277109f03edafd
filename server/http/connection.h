// One client's connection as the gate sees it: a state machine over a non-blocking socket. The gate
// calls one function per event and then asks what the connection waits for. The gate's thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "engine/base/descriptor.h"
#include "server/http/body_reader.h"
#include "server/http/edge.h"
#include "server/http/networks.h"
#include "server/http/outbox.h"
#include "server/http/request_head.h"
#include "server/http/transport.h"

namespace lockstep {

// A client that has just connected.
struct NewClient {
  Descriptor socket;
  std::unique_ptr<Transport> transport;  // over the socket
  std::string remote_address;
  Networks::Place place;
  Networks::Place site;
  // Set for one above a limit: only what is served always is served to it, once and at once.
  std::optional<HttpRejection> over = {};
};

class Connection {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Connection(uint64_t id, NewClient client, Edge& edge, Time now);

  // Events.
  void socket_ready(uint32_t epoll_events, Time now);
  void output_queued(Time now);
  void answered(bool keep_alive, Time now);
  void body_released();
  void deadline_passed(Time now);
  // The client owes too much of a stream for too long, or more than others while all owe too much;
  // or more of a stream has been made than may wait for it.
  void owes_too_much(HttpCut reason = HttpCut::kUnsent);
  size_t owed_bytes() const { return outbox_.owed_bytes(); }
  // For one that others need the place of, and that has sent no whole request yet: says so and
  // closes.
  void turn_away(Time now);
  // An event of it has thrown, for want of memory say: a request that is being read is answered
  // with 503, everything else is cut. Throws nothing.
  void fail(const std::exception& error, Time now);
  // Closes at once; a handler that still runs learns of it.
  void cut();

  // The epoll events that it waits for.
  uint32_t wanted_events() const;
  std::optional<Time> deadline() const { return deadline_; }
  int descriptor() const { return socket_.number(); }
  bool is_open() const { return socket_.is_open(); }
  // Whether a serving thread still refers to it: it must not be destroyed then.
  bool is_serving() const { return is_serving_; }
  bool is_idle() const { return phase_ == Phase::kIdle; }
  bool is_in_handshake() const { return phase_ == Phase::kHandshake; }
  const std::string& network_name() const { return place_.name(); }
  const std::string& site_name() const { return site_.name(); }
  Network& network() const { return place_.network(); }
  Network& site() const { return site_.network(); }
  bool is_over_limit() const { return over_.has_value(); }
  // Whether no request of it is being answered.
  bool is_dispensable() const { return phase_ != Phase::kServing && phase_ != Phase::kSending; }

 private:
  enum class Phase {
    kHandshake,  // of TLS
    kIdle,       // before the first byte of a request
    kHead,
    kBody,
    kServing,    // a thread has the request, or will
    kSending,    // the answer is complete; the client has not taken all of it
    kLingering,  // the last answer is sent and the sending side shut: what the client still sends
                 // is thrown away, since closing over unread bytes would destroy the answer
  };

  void shake_hands(Time now);
  void receive(Time now);
  void drop();
  void read_requests(Time now);
  bool read_head(Time now);
  bool read_body(Time now);
  std::optional<HttpRefusal> refusal_of_head();
  void answer_preflight(Time now);
  void begin_body(Time now);
  Time body_deadline() const;
  void admit(Time now);
  void refuse(HttpRefusal refusal, bool may_keep, Time now);
  void answer_refusal(HttpRefusal refusal, bool may_keep, Time now);
  void answer_without_handler(HttpAnswer answer, bool may_keep, Time now);
  void record(int status, size_t sent_bytes, bool was_whole) const;
  void finish_request(bool keep_alive, Time now);
  std::optional<Time> send_deadline(Time now);
  void flush(Time now);
  void answer_sent(Time now);
  void peer_sends_no_more(Time now);
  std::string chosen_request_id();
  // As HttpRequest has it, of the current request.
  const std::string& tenant() const { return principal_.empty() ? site_.name() : principal_; }
  void count_body_bytes(size_t bytes);
  void release_body_bytes() { count_body_bytes(0); }

  Descriptor socket_;
  const std::unique_ptr<Transport> transport_;
  const std::string remote_address_;
  const Networks::Place place_;
  const Networks::Place site_;
  const std::optional<HttpRejection> over_;
  Edge& edge_;
  HttpLimits limits_;  // those at the begin of the current request; scanner_ and outbox_ read them

  Phase phase_ = Phase::kIdle;
  std::optional<Time> deadline_;
  std::string input_;               // received, not yet consumed
  bool has_waiting_input_ = false;  // more requests than one turn may read; no more is received
  HeadScanner scanner_;
  RequestHead head_;
  BodyReader body_;
  RouteMatch match_;
  std::string principal_;
  std::string request_id_;
  ConnectionTerms terms_;          // of the current request
  Time began_;                     // of the current request: its first byte
  Time body_began_;                // its head was whole
  std::optional<Time> sent_by_;    // until when the client must have taken the whole answer
  size_t body_bytes_counted_ = 0;  // in edge_.bodies_bytes, its network's and its site's

  Outbox outbox_;
  bool is_serving_ = false;
  bool is_blocked_ = false;        // the socket takes no more for now
  bool handshake_writes_ = false;  // it waits to send
  bool peer_is_done_ = false;      // the client has shut its sending side
  bool keep_alive_ = true;         // for the answer that is being sent
};

}  // namespace lockstep
