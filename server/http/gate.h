// One thread that owns all sockets: accepts, reads requests, hands whole ones to serving threads,
// sends what they answer, and cuts clients that are slower than the limits allow.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/base/descriptor.h"
#include "engine/base/mutex.h"
#include "server/http/connection.h"
#include "server/http/edge.h"
#include "server/http/listener.h"
#include "server/http/networks.h"
#include "server/http/turns.h"

struct epoll_event;

namespace lockstep {

class Gate {
 public:
  // `edge` outlives it; the edge's threads must be stopped before the gate is destroyed.
  Gate(std::vector<Listener> listeners, Edge& edge);
  ~Gate() { stop(); }

  const std::vector<Listener>& listeners() const { return listeners_; }
  size_t open_connections() const { return open_connections_.load(std::memory_order_relaxed); }
  double turn_seconds() const;  // HttpServer's

  void start();
  // Any thread. Requests and connections that begin from here on have these.
  void set_limits(const HttpLimits& limits);
  void close_after_answers();
  void stop_accepting();
  // Cuts all connections and joins the gate's thread.
  void stop();

 private:
  using Time = Connection::Time;
  using Deadlines = std::set<std::pair<Time, uint64_t>>;
  struct Client {
    std::unique_ptr<Connection> connection;
    uint32_t events = 0;           // as epoll was told
    std::optional<Time> deadline;  // as deadlines_ holds it
    uint32_t ready_events = 0;     // that epoll has told of since its last turn; 0: not in ready_
    Deadlines::node_type spare;    // its entry of deadlines_, while that does not hold it
  };

  void run();
  void take_limits();
  int milliseconds_to_wait(Time now) const;
  void note_events(std::span<const epoll_event> events, Time now);
  void note_ready(uint64_t id, uint32_t events, Time now);
  void give_turns(Time now);
  void client_ready(uint64_t id, Client& client, Time now);
  void cut_idle();
  void accept_clients(const Listener& listener, Time now);
  void admit_client(const Listener& listener, Descriptor socket, PeerAddress address, Time now);
  void enter_client(const Listener& listener, Descriptor socket, PeerAddress address,
                    std::optional<HttpRejection> over, Time now);
  std::optional<HttpRejection> limit_reached(const PeerAddress& address) const;
  bool free_place(const PeerAddress& address, Time now);
  bool free_place_over_limit(Time now);
  void turn_away(const Descriptor& socket, const PeerAddress& address, HttpRejection reason);
  void pause_accepting(Time now);
  void resume_accepting(Time now);
  void watch_listeners(uint32_t events);
  void deliver_notices(Time now);
  void pass_deadlines(Time now);
  void cut_debtors();
  void cut_all();
  void forget(uint64_t id, const Client& client);
  // One event of a connection, and what follows from it; what it throws costs this client alone.
  template <typename Event>
  void tell(uint64_t id, Client& client, Time now, Event event);
  // After each event of a connection: brings epoll, the deadlines and the table up to date. Takes
  // no memory.
  void settle(uint64_t id, Client& client);

  std::vector<Listener> listeners_;
  bool is_accepting_ = true;  // the gate's thread only
  Edge& edge_;
  Descriptor epoll_;
  std::unordered_map<uint64_t, Client> clients_;
  Deadlines deadlines_;
  uint64_t next_id_;
  int places_freed_ = 0;              // in this turn, by free_place()
  Turns<uint64_t> ready_;             // by network; some may be gone
  std::deque<uint64_t> over_limit_;   // clients above a limit, the oldest first
  std::optional<Time> accept_again_;  // while the machine has no descriptor left
  std::string full_answer_;           // to clients above the limits that find no place at all

  Mutex new_limits_mutex_;
  std::optional<HttpLimits> new_limits_ LOCKSTEP_GUARDED_BY(new_limits_mutex_);
  std::atomic<bool> has_new_limits_ = false;
  std::once_flag accepting_ends_;
  std::atomic<bool> cuts_idle_ = false;  // asked of the gate's thread, once
  std::atomic<bool> accepting_ended_ = false;
  std::atomic<bool> is_stopping_ = false;
  std::atomic<size_t> open_connections_ = 0;
  std::atomic<Time> turn_began_ = Time{};  // Time{}: it waits
  std::thread thread_;
};

}  // namespace lockstep
