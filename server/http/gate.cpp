#include "server/http/gate.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>

#include "engine/base/check.h"
#include "engine/base/log.h"

namespace lockstep {
namespace {

constexpr uint64_t kMailboxId = 0;
constexpr uint64_t kFirstListenerId = 1;
constexpr uint64_t kFirstConnectionId = 1024;  // never used twice, so a late event finds nobody
constexpr std::string_view kTurnedAwayId = "connection-limit";  // the request id of all of them
// Turns are kept short, a few milliseconds, so that a probe that knocks among thousands is heard:
// after so many new clients, so many that have sent or taken something, and so many that are cut,
// the gate looks who has come meanwhile.
constexpr int kEventsPerLook = 1024;
constexpr int kAcceptsPerTurn = 256;
constexpr int kClientsPerTurn = 32;
constexpr int kDeadlinesPerTurn = 32;
constexpr std::chrono::milliseconds kAcceptPause{100};
// A handshake costs about as much as a hundred requests' reading, a millisecond with an RSA key of
// 2048 bits: after so many, others are heard.
constexpr int kHandshakesPerTurn = 4;
// All connections are looked at to find the one whose place is freed.
constexpr int kPlacesFreedPerTurn = 8;
constexpr int kDebtorsPerTurn = 32;

// False where the kernel refuses, for want of memory say.
bool watch(const Descriptor& epoll, int operation, int descriptor, uint32_t events, uint64_t id) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(epoll.number(), operation, descriptor, &event) == 0) return true;
  spdlog::warn("epoll_ctl({}) of descriptor {}: {}", operation, descriptor, std::strerror(errno));
  return false;
}

}  // namespace

Gate::Gate(std::vector<Listener> listeners, Edge& edge)
    : listeners_(std::move(listeners)),
      edge_(edge),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      next_id_(kFirstConnectionId) {
  HttpAnswer full;
  full.status = 503;
  full.content_type = "application/json";
  full.body = edge_.options.error_body("", 503, "too many connections are open: try again");
  full.headers.emplace("Retry-After", "1");
  add_connection_headers(full, {.minor_version = 1, .keep_alive = false},
                         std::string(kTurnedAwayId));
  full_answer_ = edge_.writer.bytes("GET", std::move(full));
}

void Gate::start() {
  const auto add = [&](int descriptor, uint64_t id) {
    CHECK(watch(epoll_, EPOLL_CTL_ADD, descriptor, EPOLLIN, id),
          "the gate {} cannot watch descriptor {}", edge_.options.gate_name, descriptor);
  };
  add(edge_.mailbox.descriptor(), kMailboxId);
  for (size_t index = 0; index < listeners_.size(); ++index) {
    if (listeners_[index].is_open()) add(listeners_[index].descriptor(), kFirstListenerId + index);
  }
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), edge_.options.gate_name.c_str());
}

double Gate::turn_seconds() const {
  const Time began = turn_began_;
  if (began == Time{}) return 0;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

void Gate::set_limits(const HttpLimits& limits) {
  {
    const MutexLock lock(new_limits_mutex_);
    new_limits_ = limits;
  }
  has_new_limits_ = true;
  edge_.mailbox.wake();
}

void Gate::take_limits() {
  const MutexLock lock(new_limits_mutex_);
  if (new_limits_) edge_.limits = *std::exchange(new_limits_, std::nullopt);
}

void Gate::close_after_answers() {
  edge_.is_draining = true;
  cuts_idle_ = true;
  edge_.mailbox.wake();
}

void Gate::stop_accepting() {
  std::call_once(accepting_ends_, [this] {
    for (Listener& listener : listeners_) listener.shut();
    accepting_ended_ = true;  // from here the gate's thread may close the listeners
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
  std::array<epoll_event, kEventsPerLook> events{};
  while (!is_stopping_) {
    const bool owes = edge_.answer_memory.held() > edge_.limits.answers_bytes;
    const int timeout =
        ready_.empty() && !owes ? milliseconds_to_wait(std::chrono::steady_clock::now()) : 0;
    turn_began_ = Time{};
    const int count = epoll_wait(epoll_.number(), events.data(), kEventsPerLook, timeout);
    CHECK(count >= 0 || errno == EINTR, "epoll_wait: {}", std::strerror(errno));
    const Time now = std::chrono::steady_clock::now();
    turn_began_ = now;
    places_freed_ = 0;
    if (has_new_limits_.exchange(false)) take_limits();
    note_events({events.data(), static_cast<size_t>(std::max(count, 0))}, now);
    give_turns(now);
    if (accepting_ended_ && is_accepting_) {
      is_accepting_ = false;
      for (Listener& listener : listeners_) listener.close();
      accept_again_.reset();
    }
    if (cuts_idle_.exchange(false)) cut_idle();
    if (accept_again_ && *accept_again_ <= now) resume_accepting(now);
    pass_deadlines(now);
    if (edge_.answer_memory.held() > edge_.limits.answers_bytes) cut_debtors();
    open_connections_.store(clients_.size(), std::memory_order_relaxed);
  }
  turn_began_ = Time{};
  cut_all();
}

// New clients last: those who have left free places for them.
void Gate::note_events(std::span<const epoll_event> events, Time now) {
  bool has_notices = false;
  for (const epoll_event& event : events) {
    if (event.data.u64 >= kFirstConnectionId) {
      note_ready(event.data.u64, event.events, now);
    } else {
      has_notices = has_notices || event.data.u64 == kMailboxId;
    }
  }
  if (has_notices) deliver_notices(now);
  for (const epoll_event& event : events) {
    const uint64_t id = event.data.u64;
    if (id == kMailboxId || id >= kFirstConnectionId) continue;
    accept_clients(listeners_[id - kFirstListenerId], now);
  }
}

void Gate::note_ready(uint64_t id, uint32_t events, Time now) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  Client& client = found->second;
  const bool is_waiting = client.ready_events != 0;
  client.ready_events |= events;
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
    client_ready(id, client, now);  // nothing but an end
  } else if (!is_waiting) {
    tell(id, client, now,
         [&](const Connection& connection) { ready_.add(connection.network_name(), id); });
  }
}

// Networks take turns: a client among few waits for one of each of the others, however many
// connections those have.
void Gate::give_turns(Time now) {
  int handshakes = 0;
  for (int count = 0; count < kClientsPerTurn && !ready_.empty(); ++count) {
    const uint64_t id = ready_.next();
    const auto found = clients_.find(id);
    if (found == clients_.end()) continue;
    if (found->second.connection->is_in_handshake() && ++handshakes > kHandshakesPerTurn) {
      found->second.ready_events = 0;  // epoll tells again
      continue;
    }
    client_ready(id, found->second, now);
  }
}

void Gate::client_ready(uint64_t id, Client& client, Time now) {
  // Events that it has been told of may be no longer wanted.
  const uint32_t wanted = client.events | EPOLLHUP | EPOLLERR;
  const uint32_t events = std::exchange(client.ready_events, 0) & wanted;
  if (events == 0) return;
  tell(id, client, now, [&](Connection& connection) {
    if (connection.is_open()) connection.socket_ready(events, now);
  });
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
  for (auto next = clients_.begin(); next != clients_.end();) {
    auto& [id, client] = *next++;  // it may be forgotten
    if (!client.connection->is_idle() && !client.connection->is_in_handshake()) continue;
    client.connection->cut();
    settle(id, client);
  }
}

void Gate::accept_clients(const Listener& listener, Time now) {
  // Once accepting has ended, a client that still waits is left to the socket's next owner, if
  // there is one. While draining, clients are still let in and told so.
  for (int count = 0; count < kAcceptsPerTurn && listener.is_open() && !accepting_ended_; ++count) {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    Descriptor socket(accept4(listener.descriptor(), reinterpret_cast<sockaddr*>(&address), &size,
                              SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.is_open()) {
      try {
        admit_client(listener, std::move(socket), edge_.options.address_of(address), now);
      } catch (const std::exception& error) {
        edge_.counters.add(HttpRejection::kMemory);
        spdlog::error("A client cannot be let in: {}", error.what());
      }
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

void Gate::admit_client(const Listener& listener, Descriptor socket, PeerAddress address,
                        Time now) {
  if (accepting_ended_) return;
  const auto over = limit_reached(address);
  const bool has_place = !over || (over == HttpRejection::kConnections && free_place(address, now));
  if (has_place) {
    enter_client(listener, std::move(socket), std::move(address), std::nullopt, now);
  } else if (free_place_over_limit(now)) {
    enter_client(listener, std::move(socket), std::move(address), over, now);
  } else {
    turn_away(socket, address, *over);
  }
}

// Throws std::bad_alloc, and then the client is not there.
void Gate::enter_client(const Listener& listener, Descriptor socket, PeerAddress address,
                        std::optional<HttpRejection> over, Time now) {
  const int number = socket.number();
  NewClient fresh{std::move(socket),
                  nullptr,
                  std::move(address.text),
                  Networks::Place(edge_.networks, address.network, over.has_value()),
                  Networks::Place(edge_.sites, address.site, over.has_value()),
                  over};
  if (edge_.tls != nullptr && !listener.is_unix()) {
    fresh.transport = edge_.tls->make_transport(number);
    if (fresh.transport == nullptr) throw std::bad_alloc();
  } else {
    fresh.transport = std::make_unique<PlainTransport>(number);
  }
  const uint64_t id = next_id_++;
  Client client;
  client.connection = std::make_unique<Connection>(id, std::move(fresh), edge_, now);
  client.events = client.connection->wanted_events();
  client.spare = deadlines_.extract(deadlines_.emplace(Time{}, id).first);
  if (over) over_limit_.push_back(id);
  try {
    settle(id, clients_.emplace(id, std::move(client)).first->second);
  } catch (const std::bad_alloc&) {
    if (over) std::erase(over_limit_, id);
    throw;
  }
  if (watch(epoll_, EPOLL_CTL_ADD, number, clients_.at(id).events, id)) return;
  edge_.counters.add(HttpRejection::kMemory);
  Client& unwatched = clients_.at(id);
  unwatched.connection->cut();
  settle(id, unwatched);
}

std::optional<HttpRejection> Gate::limit_reached(const PeerAddress& address) const {
  const HttpLimits& limits = edge_.limits;
  if (clients_.size() - over_limit_.size() >= limits.connections) {
    return HttpRejection::kConnections;
  }
  // A Unix socket's clients have no address.
  if (!address.network.empty() &&
      edge_.networks.find(address.network).connections >= limits.connections_per_address) {
    return HttpRejection::kAddress;
  }
  return std::nullopt;
}

// If all places are taken, frees that of a client without a request, of the site that has most
// and there of the network that has most; for one whose site has fewer, or in sites that have as
// many its network. False if there is none.
bool Gate::free_place(const PeerAddress& address, Time now) {
  if (places_freed_ >= kPlacesFreedPerTurn) return false;
  // The connections of the newcomer's site and network, itself included.
  std::pair most = {edge_.sites.find(address.site).connections + 1,
                    edge_.networks.find(address.network).connections + 1};
  std::pair<const uint64_t, Client>* chosen = nullptr;
  for (auto& entry : clients_) {
    const Connection& connection = *entry.second.connection;
    if (connection.is_over_limit() || !connection.is_dispensable()) continue;
    const size_t newcomers = connection.site_name() == address.site ? 1 : 0;
    const std::pair has = {connection.site().connections + newcomers,
                           connection.network().connections};
    const bool is_older = chosen != nullptr && has == most && entry.first < chosen->first;
    if (has > most || is_older) {
      chosen = &entry;
      most = has;
    }
  }
  if (chosen == nullptr) return false;
  ++places_freed_;
  tell(chosen->first, chosen->second, now,
       [&](Connection& connection) { connection.turn_away(now); });
  return true;
}

// The oldest of the network that has most such places, of the site that has most, gives up its
// place. False if all are taken by clients that are being answered.
bool Gate::free_place_over_limit(Time now) {
  if (over_limit_.size() < edge_.limits.over_limit_connections) return true;
  std::optional<uint64_t> chosen;
  std::pair<size_t, size_t> most;  // of a site, and of a network
  for (const uint64_t id : over_limit_) {
    const Connection& connection = *clients_.at(id).connection;
    const std::pair has = {connection.site().over_limit, connection.network().over_limit};
    if (!connection.is_dispensable() || has <= most) continue;
    chosen = id;
    most = has;
  }
  if (!chosen) return false;
  tell(*chosen, clients_.at(*chosen), now,
       [&](Connection& connection) { connection.turn_away(now); });
  return true;
}

// Says why, as far as the socket takes it at once; nothing is kept for such a client.
void Gate::turn_away(const Descriptor& socket, const PeerAddress& address, HttpRejection reason) {
  edge_.counters.add(reason);
  if (edge_.options.on_finished) {
    HttpRecord record;
    record.request_id = kTurnedAwayId;
    record.remote_address = address.text;
    record.status = 503;
    record.was_whole = false;
    edge_.options.on_finished(record);
  }
  if (edge_.tls != nullptr) return;
  send(socket.number(), full_answer_.data(), full_answer_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  shutdown(socket.number(), SHUT_WR);
  // Reads what the client has sent already, so that closing does not destroy the answer.
  recv(socket.number(), edge_.receive_buffer.data(), edge_.receive_buffer.size(), MSG_DONTWAIT);
}

void Gate::pause_accepting(Time now) {
  accept_again_ = now + kAcceptPause;
  watch_listeners(0);
}

void Gate::resume_accepting(Time now) {
  accept_again_.reset();
  watch_listeners(EPOLLIN);
  for (const Listener& listener : listeners_) accept_clients(listener, now);
}

void Gate::watch_listeners(uint32_t events) {
  for (size_t index = 0; index < listeners_.size(); ++index) {
    if (!listeners_[index].is_open()) continue;
    watch(epoll_, EPOLL_CTL_MOD, listeners_[index].descriptor(), events, kFirstListenerId + index);
  }
}

void Gate::deliver_notices(Time now) {
  using Kind = Notice::Kind;
  for (size_t count = edge_.mailbox.begin_collecting(); count > 0; --count) {
    const auto notice = edge_.mailbox.next();
    if (!notice) break;
    const auto found = clients_.find(notice->connection);
    if (found == clients_.end()) continue;
    tell(notice->connection, found->second, now, [&](Connection& connection) {
      if (notice->holds(Kind::kTooSlow)) connection.owes_too_much(HttpCut::kSlow);
      if (notice->holds(Kind::kCut)) connection.owes_too_much();
      if (notice->holds(Kind::kBodyReleased)) connection.body_released();
      const bool is_answered = notice->holds(Kind::kAnswered) || notice->holds(Kind::kLastAnswered);
      if (is_answered) {
        connection.answered(notice->holds(Kind::kAnswered), now);
      } else if (notice->holds(Kind::kOutput) && connection.is_open()) {
        connection.output_queued(now);
      }
    });
  }
  edge_.mailbox.end_collecting();
}

void Gate::pass_deadlines(Time now) {
  // Deadlines that are left over end the next wait at once.
  for (int count = 0;
       count < kDeadlinesPerTurn && !deadlines_.empty() && deadlines_.begin()->first <= now;
       ++count) {
    const uint64_t id = deadlines_.begin()->second;
    tell(id, clients_.at(id), now,
         [&](Connection& connection) { connection.deadline_passed(now); });
  }
}

template <typename Event>
void Gate::tell(uint64_t id, Client& client, Time now, Event event) {
  try {
    event(*client.connection);
  } catch (const std::exception& error) {
    client.ready_events = 0;
    client.connection->fail(error, now);
  }
  settle(id, client);
}

void Gate::settle(uint64_t id, Client& client) {
  Connection& connection = *client.connection;
  if (client.deadline != connection.deadline()) {
    if (client.deadline) client.spare = deadlines_.extract({*client.deadline, id});
    client.deadline = connection.deadline();
    if (client.deadline) {
      client.spare.value() = {*client.deadline, id};
      deadlines_.insert(std::move(client.spare));
    }
  }
  if (connection.is_open()) {
    const uint32_t events = connection.wanted_events();
    if (events == client.events) return;
    client.events = events;
    if (watch(epoll_, EPOLL_CTL_MOD, connection.descriptor(), events, id)) return;
    edge_.counters.add(HttpRejection::kMemory);
    connection.cut();
    settle(id, client);
  } else if (!connection.is_serving()) {  // epoll forgets a closed descriptor by itself
    forget(id, client);
  }
}

void Gate::forget(uint64_t id, const Client& client) {
  if (client.connection->is_over_limit()) std::erase(over_limit_, id);
  clients_.erase(id);
}

// Until all together owe no more than they may, of the site that owes most the network that owes
// most, and of it the connection: however a site's debts are spread over those.
void Gate::cut_debtors() {
  for (int count = 0; count < kDebtorsPerTurn; ++count) {
    if (edge_.answer_memory.held() <= edge_.limits.answers_bytes) return;
    for (Networks* const networks : {&edge_.sites, &edge_.networks}) {
      for (auto& [name, network] : networks->table()) network.owed_bytes = 0;
    }
    for (auto& [id, client] : clients_) {
      Connection& connection = *client.connection;
      connection.site().owed_bytes += connection.owed_bytes();
      connection.network().owed_bytes += connection.owed_bytes();
    }
    std::pair<const uint64_t, Client>* chosen = nullptr;
    std::array<size_t, 3> most = {};  // of a site, of a network, and of a connection
    for (auto& entry : clients_) {
      const Connection& connection = *entry.second.connection;
      const std::array owed = {connection.site().owed_bytes, connection.network().owed_bytes,
                               connection.owed_bytes()};
      if (owed[2] == 0 || owed <= most) continue;
      chosen = &entry;
      most = owed;
    }
    if (chosen == nullptr) return;
    chosen->second.connection->owes_too_much();
    settle(chosen->first, chosen->second);
  }
}

void Gate::cut_all() {
  for (auto& [id, client] : clients_) client.connection->cut();
  deadlines_.clear();
  for (Listener& listener : listeners_) listener.close();
}

}  // namespace lockstep
