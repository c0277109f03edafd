// One thread that owns all sockets: accepts, reads requests, hands whole ones to serving threads,
// sends what they answer, and cuts clients that are slower than the limits allow.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "server/http/connection.h"
#include "server/http/descriptor.h"
#include "server/http/edge.h"
#include "server/http/listener.h"

namespace lockstep {

class Gate {
 public:
  // `edge` outlives it; the edge's threads must be stopped before the gate is destroyed.
  Gate(Listener listener, Edge& edge);
  ~Gate() { stop(); }

  uint16_t port() const { return listener_.port(); }
  size_t open_connections() const { return open_connections_.load(std::memory_order_relaxed); }

  void start();
  void close_after_answers();
  void stop_accepting();
  // Cuts all connections and joins the gate's thread.
  void stop();

 private:
  using Time = Connection::Time;
  struct Client {
    std::unique_ptr<Connection> connection;
    uint32_t events = 0;           // as epoll was told
    std::optional<Time> deadline;  // as deadlines_ holds it
  };

  void run();
  int milliseconds_to_wait(Time now) const;
  void cut_idle();
  void accept_clients(Time now);
  void admit_client(Descriptor socket, std::string remote_address, Time now);
  void turn_away(const Descriptor& socket);
  void pause_accepting(Time now);
  void resume_accepting(Time now);
  void watch_listener(uint32_t events);
  void deliver_notices(Time now);
  void pass_deadlines(Time now);
  void cut_all();
  // After each event of a connection: brings epoll, the deadlines and the table up to date.
  void settle(uint64_t id, Client& client);

  Listener listener_;
  Edge& edge_;
  Descriptor epoll_;
  std::unordered_map<uint64_t, Client> clients_;
  std::set<std::pair<Time, uint64_t>> deadlines_;
  uint64_t next_id_;
  std::optional<Time> accept_again_;  // while the machine has no descriptor left
  std::string full_answer_;           // to clients above limits.connections

  std::once_flag accepting_ends_;
  std::atomic<bool> cuts_idle_ = false;  // asked of the gate's thread, once
  std::atomic<bool> accepting_ended_ = false;
  std::atomic<bool> is_stopping_ = false;
  std::atomic<size_t> open_connections_ = 0;
  std::thread thread_;
};

}  // namespace lockstep
