#include "server/http/gate.h"

#include <netdb.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "engine/base/check.h"
#include "engine/base/log.h"

namespace lockstep {
namespace {

constexpr uint64_t kListenerId = 0;
constexpr uint64_t kMailboxId = 1;
constexpr uint64_t kFirstConnectionId = 2;  // never used twice, so a late event finds nobody
constexpr int kAcceptsPerEvent = 64;        // then the clients that are here get their turn
constexpr std::chrono::milliseconds kAcceptPause{100};

std::string address_text(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  const int failure = getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(),
                                  host.size(), nullptr, 0, NI_NUMERICHOST);
  return failure == 0 ? host.data() : "unknown";
}

void watch(const Descriptor& epoll, int operation, int descriptor, uint32_t events, uint64_t id) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  const int status = epoll_ctl(epoll.number(), operation, descriptor, &event);
  CHECK(status == 0, "epoll_ctl({}) of descriptor {}: {}", operation, descriptor,
        std::strerror(errno));
}

}  // namespace

Gate::Gate(Listener listener, Edge& edge)
    : listener_(std::move(listener)),
      edge_(edge),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      next_id_(kFirstConnectionId) {
  HttpAnswer full;
  full.status = 503;
  full.content_type = "application/json";
  full.body = edge_.options.error_body(503, "too many connections are open: try again");
  full.headers.emplace("Retry-After", "1");
  add_connection_headers(full, {.minor_version = 1, .keep_alive = false}, "connection-limit");
  full_answer_ = edge_.writer.bytes("GET", std::move(full));
}

void Gate::start() {
  watch(epoll_, EPOLL_CTL_ADD, edge_.mailbox.descriptor(), EPOLLIN, kMailboxId);
  if (listener_.is_open()) {
    watch(epoll_, EPOLL_CTL_ADD, listener_.descriptor(), EPOLLIN, kListenerId);
  }
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "gate");
}

void Gate::close_after_answers() {
  edge_.is_draining = true;
  cuts_idle_ = true;
  edge_.mailbox.wake();
}

void Gate::stop_accepting() {
  std::call_once(accepting_ends_, [this] {
    listener_.shut();
    accepting_ended_ = true;  // from here the gate's thread may close the listener
    close_after_answers();
  });
}

void Gate::stop() {
  stop_accepting();
  is_stopping_ = true;
  edge_.mailbox.wake();
  if (thread_.joinable()) thread_.join();
}

void Gate::run() {
  std::array<epoll_event, 256> events{};
  while (!is_stopping_) {
    const int timeout = milliseconds_to_wait(std::chrono::steady_clock::now());
    const int count =
        epoll_wait(epoll_.number(), events.data(), static_cast<int>(events.size()), timeout);
    CHECK(count >= 0 || errno == EINTR, "epoll_wait: {}", std::strerror(errno));
    const Time now = std::chrono::steady_clock::now();
    for (int index = 0; index < count; ++index) {
      const epoll_event& event = events[static_cast<size_t>(index)];
      const uint64_t id = event.data.u64;
      if (id == kListenerId) {
        accept_clients(now);
      } else if (id == kMailboxId) {
        deliver_notices(now);
      } else if (const auto found = clients_.find(id); found != clients_.end()) {
        if (found->second.connection->is_open()) {
          found->second.connection->socket_ready(event.events, now);
        }
        settle(id, found->second);
      }
    }
    if (accepting_ended_ && listener_.is_open()) {
      listener_.close();
      accept_again_.reset();
    }
    if (cuts_idle_.exchange(false)) cut_idle();
    if (accept_again_ && *accept_again_ <= now) resume_accepting(now);
    pass_deadlines(now);
    open_connections_.store(clients_.size(), std::memory_order_relaxed);
  }
  cut_all();
}

int Gate::milliseconds_to_wait(Time now) const {
  std::optional<Time> next = accept_again_;
  if (!deadlines_.empty() && (!next || deadlines_.begin()->first < *next)) {
    next = deadlines_.begin()->first;
  }
  if (!next) return -1;
  // Up, so that the deadline has passed when the wait ends.
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(*next - now);
  return static_cast<int>(std::clamp<int64_t>(wait.count(), 0, 60'000));
}

// Connections without a request have nothing to wait for.
void Gate::cut_idle() {
  std::vector<uint64_t> idle;
  for (const auto& [id, client] : clients_) {
    if (client.connection->is_idle()) idle.push_back(id);
  }
  for (const uint64_t id : idle) {
    Client& client = clients_.at(id);
    client.connection->cut();
    settle(id, client);
  }
}

void Gate::accept_clients(Time now) {
  for (int count = 0; count < kAcceptsPerEvent && listener_.is_open(); ++count) {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    Descriptor socket(accept4(listener_.descriptor(), reinterpret_cast<sockaddr*>(&address), &size,
                              SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.is_open()) {
      admit_client(std::move(socket), address_text(address, size), now);
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      spdlog::warn("Cannot accept another client: {}; {} connections are open",
                   std::strerror(errno), clients_.size());
      pause_accepting(now);
    }
    return;  // nobody left to accept, or shut
  }
}

void Gate::admit_client(Descriptor socket, std::string remote_address, Time now) {
  if (accepting_ended_) return;
  if (clients_.size() >= edge_.options.limits.connections) {
    turn_away(socket);
    return;
  }
  const uint64_t id = next_id_++;
  const int number = socket.number();
  Client client;
  client.connection =
      std::make_unique<Connection>(id, std::move(socket), std::move(remote_address), edge_, now);
  client.events = client.connection->wanted_events();
  watch(epoll_, EPOLL_CTL_ADD, number, client.events, id);
  settle(id, clients_.emplace(id, std::move(client)).first->second);
}

// Says why, as far as the socket takes it at once; nothing is kept for such a client.
void Gate::turn_away(const Descriptor& socket) {
  send(socket.number(), full_answer_.data(), full_answer_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  shutdown(socket.number(), SHUT_WR);
  // What the client has sent already, so that closing does not destroy the answer.
  recv(socket.number(), edge_.receive_buffer.data(), edge_.receive_buffer.size(), MSG_DONTWAIT);
}

void Gate::pause_accepting(Time now) {
  accept_again_ = now + kAcceptPause;
  watch_listener(0);
}

void Gate::resume_accepting(Time now) {
  accept_again_.reset();
  watch_listener(EPOLLIN);
  accept_clients(now);
}

void Gate::watch_listener(uint32_t events) {
  watch(epoll_, EPOLL_CTL_MOD, listener_.descriptor(), events, kListenerId);
}

void Gate::deliver_notices(Time now) {
  for (const Notice& notice : edge_.mailbox.collect()) {
    const auto found = clients_.find(notice.connection);
    if (found == clients_.end()) continue;
    Connection& connection = *found->second.connection;
    switch (notice.kind) {
      case Notice::Kind::kOutput:
        if (connection.is_open()) connection.output_queued(now);
        break;
      case Notice::Kind::kCut:
        connection.cut();
        break;
      case Notice::Kind::kAnswered:
        connection.answered(notice.keep_alive, now);
        break;
    }
    settle(notice.connection, found->second);
  }
}

void Gate::pass_deadlines(Time now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const uint64_t id = deadlines_.begin()->second;
    Client& client = clients_.at(id);
    client.connection->deadline_passed(now);
    settle(id, client);
  }
}

void Gate::settle(uint64_t id, Client& client) {
  Connection& connection = *client.connection;
  if (client.deadline != connection.deadline()) {
    if (client.deadline) deadlines_.erase({*client.deadline, id});
    client.deadline = connection.deadline();
    if (client.deadline) deadlines_.emplace(*client.deadline, id);
  }
  if (!connection.is_open()) {  // epoll forgets a closed descriptor by itself
    if (!connection.is_serving()) clients_.erase(id);
    return;
  }
  if (const uint32_t events = connection.wanted_events(); events != client.events) {
    watch(epoll_, EPOLL_CTL_MOD, connection.descriptor(), events, id);
    client.events = events;
  }
}

void Gate::cut_all() {
  for (auto& [id, client] : clients_) client.connection->cut();
  deadlines_.clear();
  listener_.close();
}

}  // namespace lockstep
