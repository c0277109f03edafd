// Any bytes as what a client sends over one connection, in any pieces, with a transport that takes
// answers in any pieces, a sending side that is shut, deadlines that pass and a server that drains.
// Handlers run on a thread, which is waited for: nothing depends on time.
#include <fcntl.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "engine/base/check.h"
#include "server/http/connection.h"

namespace lockstep {
namespace {

constexpr size_t kEventsMax = 2000;  // of one client; more would be a loop without an end
constexpr size_t kActionsMax = 64;

// The client's end.
struct Wire {
  std::string arrived;  // not received yet
  bool shut = false;    // nothing follows
  size_t space = 0;     // so many bytes are taken before it is full
  std::string sent;
};

class WireTransport final : public Transport {
 public:
  explicit WireTransport(Wire& wire) : wire_(wire) {}

  bool needs_handshake() const override { return false; }
  Outcome handshake() override { return {}; }
  std::string_view hint_to_client() const override { return ""; }
  Outcome receive(char* bytes, size_t size) override {
    const size_t taken = std::min(size, wire_.arrived.size());
    if (taken == 0) return {.status = wire_.shut ? Status::kEnded : Status::kBlocked};
    std::memcpy(bytes, wire_.arrived.data(), taken);
    wire_.arrived.erase(0, taken);
    return {.bytes = taken};
  }
  Outcome send(const char* bytes, size_t size) override {
    const size_t taken = std::min(size, wire_.space);
    if (taken == 0) return {.status = Status::kBlocked, .wants_write = true};
    wire_.sent.append(bytes, taken);
    wire_.space -= taken;
    return {.bytes = taken};
  }
  void end_sending() override {}

 private:
  Wire& wire_;
};

void stream(const HttpRequest& request, HttpResponse& response) {
  if (!response.start_stream(200, "text/plain")) return;
  for (int count = 0; count < 3; ++count) response.write(request.path);
}

std::vector<HttpRoute> make_routes() {
  const auto echo = [](const HttpRequest& request, HttpResponse& response) {
    response.send(200, "text/plain", request.body);
  };
  const auto release = [](const HttpRequest& request, HttpResponse& response) {
    response.release_body(request.body.size() / 2);
    response.send(201, "text/plain", "");
  };
  const auto busy = [](const std::string&) { return HttpRefusal{429, "busy", {}}; };
  return {{"GET", "/stream/:name", stream, true},
          {"POST", "/echo", echo},
          {"POST", "/release", release},
          {"POST", "/busy", echo, false, false, busy},
          {"GET", "/silent", [](const HttpRequest&, HttpResponse&) {}},
          {"GET", "/throws", [](const HttpRequest&, HttpResponse&) { throw std::bad_alloc(); }}};
}

// One server for all inputs; what a client leaves in it is checked to be nothing.
struct Server {
  Server() : edge(options(), make_routes(), nullptr) {
    edge.limits.head_bytes = 1024;
    edge.limits.head_fields = 8;
    edge.limits.body_bytes = 256;
    edge.ordinary_threads.start(1, 1);
    edge.reserved_threads.start(1, 1);
  }
  HttpOptions options() {
    HttpOptions made;
    made.cors_origins = {"https://chat.example.org"};
    made.error_body = [](std::string_view, int, std::string_view) { return "{}"; };
    made.on_finished = [this](const HttpRecord& record) { statuses.push_back(record.status); };
    made.authorize = [](const HttpHead& head) -> std::expected<std::string, HttpRefusal> {
      if (head.header("authorization") == "no") return std::unexpected(HttpRefusal{401, "no", {}});
      return "somebody";
    };
    return made;
  }

  std::vector<int> statuses;  // of all requests that have ended; a thread has it while it serves
  Edge edge;
};

Server& server() {
  static Server& made = *new Server;  // its threads live as long as the process
  return made;
}

class Client {
 public:
  explicit Client(size_t space) {
    wire_.space = space;
    server().statuses.clear();
    server().edge.is_draining = false;
    NewClient fresh{Descriptor(::open("/dev/null", O_RDWR | O_CLOEXEC)),
                    std::make_unique<WireTransport>(wire_), "192.0.2.1",
                    Networks::Place(server().edge.networks, "192.0.2.1", false),
                    Networks::Place(server().edge.sites, "192.0.2.0/24", false)};
    connection_ = std::make_unique<Connection>(1, std::move(fresh), server().edge, now_);
  }
  ~Client() {
    connection_->cut();
    settle(false);
    connection_.reset();
    const Edge& edge = server().edge;
    CHECK(edge.bodies_bytes == 0 && edge.answer_memory.held() == 0,
          "{} bytes of bodies, {} of answers", edge.bodies_bytes, edge.answer_memory.held());
    const std::string_view begin = std::string_view("HTTP/1.1 ").substr(0, wire_.sent.size());
    CHECK(wire_.sent.starts_with(begin), "{} was sent", wire_.sent);
  }

  void send(std::string_view bytes) {
    if (!wire_.shut) wire_.arrived += bytes;
    settle(false);
  }
  void shut() {
    wire_.shut = true;
    settle(true);
  }
  void act(FuzzedDataProvider& input) {
    switch (input.ConsumeIntegralInRange(0, 9)) {
      case 0:
        return shut();
      case 1:
        wire_.shut = true;
        return settle(false);
      case 2:
        wire_.space += input.ConsumeIntegralInRange<size_t>(1, 400);
        return settle(false);
      case 3:
        if (connection_->deadline()) {
          now_ = *connection_->deadline();
          connection_->deadline_passed(now_);
        }
        return settle(false);
      case 4:
        server().edge.is_draining = true;
        return;
      case 5:
        if (connection_->is_open() && connection_->is_dispensable()) connection_->turn_away(now_);
        return settle(false);
      case 6:
        connection_->owes_too_much();
        return settle(false);
      default:
        return send(input.ConsumeBytesAsString(input.ConsumeIntegralInRange<size_t>(0, 80)));
    }
  }

 private:
  // Everything that follows from what has happened, as the gate would tell it. `leaves`: the client
  // shuts its sending side while a request is served.
  void settle(bool leaves) {
    for (size_t count = 0; tell_next(leaves); ++count) {
      CHECK(count < kEventsMax, "{} events, and no end", count);
    }
    const bool waits = connection_->is_open() && !connection_->is_serving();
    CHECK(!waits || connection_->deadline(), "it waits, and nothing ends that");
  }

  bool tell_next(bool leaves) {
    if (connection_->is_serving()) {
      if (leaves && connection_->is_open() && (connection_->wanted_events() & EPOLLRDHUP) != 0) {
        connection_->socket_ready(EPOLLRDHUP, now_);
      }
      deliver(collect(true));
      return true;
    }
    if (const Notice notice = collect(false); notice.kinds != 0) {
      deliver(notice);
      return true;
    }
    uint32_t events = !wire_.arrived.empty() || wire_.shut ? EPOLLIN : 0U;
    if (wire_.shut) events |= EPOLLRDHUP;
    if (wire_.space > 0) events |= EPOLLOUT;
    if (!connection_->is_open()) return false;
    events &= connection_->wanted_events();
    if (events != 0) connection_->socket_ready(events, now_);
    return events != 0;
  }

  // All that has been posted; `answered`: up to the end of the request that is served.
  static Notice collect(bool answered) {
    Mailbox& mailbox = server().edge.mailbox;
    Notice all;
    const auto is_answered = [&] {
      return all.holds(Notice::Kind::kAnswered) || all.holds(Notice::Kind::kLastAnswered);
    };
    do {
      pollfd entry{.fd = mailbox.descriptor(), .events = POLLIN, .revents = 0};
      if (::poll(&entry, 1, answered ? -1 : 0) <= 0) continue;
      for (size_t count = mailbox.begin_collecting(); count > 0; --count) {
        if (const auto notice = mailbox.next()) all.kinds |= notice->kinds;
      }
      mailbox.end_collecting();
    } while (answered && !is_answered());
    return all;
  }

  void deliver(const Notice& notice) {
    using enum Notice::Kind;
    if (notice.holds(kTooSlow) || notice.holds(kCut)) connection_->owes_too_much();
    if (notice.holds(kBodyReleased)) connection_->body_released();
    if (notice.holds(kAnswered) || notice.holds(kLastAnswered)) {
      connection_->answered(notice.holds(kAnswered), now_);
    } else if (notice.holds(kOutput) && connection_->is_open()) {
      connection_->output_queued(now_);
    }
  }

  Wire wire_;
  Connection::Time now_{std::chrono::hours(1)};
  std::unique_ptr<Connection> connection_;
};

std::vector<int> statuses_of(std::string_view text, size_t piece) {
  {
    Client client(1U << 20U);
    for (; !text.empty(); text.remove_prefix(std::min(piece, text.size()))) {
      client.send(text.substr(0, piece));
    }
    client.shut();
  }
  return server().statuses;
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto at_once = statuses_of(text, std::max<size_t>(size, 1));
  CHECK(at_once == statuses_of(text, 7), "cut every 7 bytes it is answered otherwise");
  FuzzedDataProvider input(data, size);
  Client client(input.ConsumeIntegralInRange<size_t>(0, 300));
  for (size_t count = 0; count < kActionsMax && input.remaining_bytes() > 0; ++count) {
    client.act(input);
  }
  return 0;
}
