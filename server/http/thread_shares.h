// Decides which client gets a serving thread, and when. No threads and no clock, so that it can be
// simulated.
//
// The rules:
//   - Clients take turns: of those that wait and may begin, the one goes next whose last request
//     went first.
//   - A client's first request takes any thread that is left.
//   - A client that has threads gets further ones while it has at most twice what it leaves, and
//     leaves an eighth of all: for clients that have none.
//   - The clients of one site (PeerAddress) have together at most what one client may have, so that
//     many networks of one owner get no more than one network. A site's first request takes any
//     thread that is left. Clients with keys have no site: the operator has given them the keys.
//
// What follows, where requests come that do not end:
//   - One site, however many networks it has, leaves a third of the threads.
//   - Any number of clients below 7/8 of the threads, whatever each sends, leave one for the first
//     request of as many others as make up the rest.
//   - As many sites as there are threads can take all, with a request each. The next one's waits
//     for its turn: at most one request of each of them goes before it. What those can wait for:
//     the engine, whose places are fewer than the threads where --http-threads is auto; their
//     preparation, which ends by its own budgets; a client that does not read, until the write
//     deadline.
//   - Requests for health and metrics have threads of their own (Edge::reserved_threads) and end
//     without waiting for anybody: the page of metrics is made once for all that wait for it, and
//     a client that does not read it has it in its outbox. Neither heads and bodies that come
//     slowly nor whole answers that are taken slowly hold a thread: they are the gate's.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>

namespace lockstep {

// Used by one thread at a time.
class ThreadShares {
 public:
  // Sets the number of threads from here on, be fewer or more of them busy.
  void set_most(size_t most) { most_ = most; }

  // A request of the client waits. A client is of one site as long as it has requests; "": of none.
  // Throws std::bad_alloc, and then nothing has changed. Nothing below takes memory.
  void add(const std::string& client, const std::string& site);
  // One that waits is dropped.
  void drop(const std::string& client);
  // Whether one that waits may have a thread now.
  bool may_begin(const std::string& client) const;
  void begin(const std::string& client);
  void end(const std::string& client);

  size_t busy() const { return busy_; }
  size_t client_count() const { return clients_.size(); }
  size_t site_count() const { return sites_.size(); }

 private:
  // The requests of a client, or of all clients of a site.
  struct Holder {
    size_t requests = 0;  // that wait or are served
    size_t served = 0;
  };
  using Sites = std::unordered_map<std::string, Holder>;
  struct Client {
    Holder own;
    Sites::value_type* site = nullptr;  // its entry of sites_; null: of none
  };
  using Clients = std::unordered_map<std::string, Client>;

  void forget(Clients::iterator client);

  size_t most_ = 0;
  size_t busy_ = 0;
  Clients clients_;  // those with a request, as sites_ are; entries stay where they are
  Sites sites_;
};

}  // namespace lockstep
