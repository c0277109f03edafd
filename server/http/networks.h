// The addresses and networks of clients, and whose connections hold how much of what all
// connections of a gate share. Sites are counted by a table of their own.
//
// Of bytes of bodies and of threads each network may hold twice what is left for all, so that one
// alone has two thirds, k of them in the end 2/(2k + 1) each, and one that comes finds at least a
// third of what the last one found (Choudhury and Hahne, Dynamic queue length thresholds for
// shared-memory packet switches, 1998). The same holds of each site: however many networks it has,
// together they get what one could. Shares become small where many hold them: a part is therefore
// kept for those that hold nothing yet.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>

namespace lockstep {

// The address of a client.
struct PeerAddress {
  std::string text;  // "192.0.2.1", "2001:db8::1", "unix"
  // The network that one client can have many connections from: an IPv4 address, or an IPv6 network
  // of 64 bits, since a host gets at least one of these. "" for a Unix socket: it has no address.
  std::string network;
  // The longest prefix that the Internet routes, 24 bits of an IPv4 address and 48 of an IPv6 one:
  // a guess at the owner of the network. One owner may have all networks of such a prefix, and gets
  // others only by a further allocation. An address that is routed nowhere (private, local, shared)
  // has its network for a site: there the server's operator gives the addresses. "" for a Unix
  // socket.
  std::string site;

  static PeerAddress of(const sockaddr_storage& address);
};

struct Network {
  size_t connections = 0;  // within the limits
  size_t over_limit = 0;   // connections above them
  size_t body_bytes = 0;   // of its requests, as HttpLimits::bodies_bytes counts them
  size_t owed_bytes = 0;   // for Gate::cut_debtors() alone
};

// The networks of all connections, as PeerAddress has them. The gate's thread only.
class Networks {
 public:
  using Table = std::unordered_map<std::string, Network>;

  // One connection's place; the network is known while it has any.
  class Place {
   public:
    Place(Networks& networks, const std::string& name, bool is_over_limit);
    ~Place();
    Place(Place&& other) noexcept
        : table_(std::exchange(other.table_, nullptr)),
          entry_(other.entry_),
          is_over_limit_(other.is_over_limit_) {}
    Place& operator=(Place&&) = delete;

    const std::string& name() const { return entry_->first; }
    Network& network() const { return entry_->second; }

   private:
    size_t& count() const {
      return is_over_limit_ ? entry_->second.over_limit : entry_->second.connections;
    }

    Table* table_;  // null: it has been moved away
    Table::value_type* entry_;
    bool is_over_limit_;
  };

  Table& table() { return table_; }
  // All members are 0 for a network without connections.
  Network find(const std::string& name) const;

 private:
  Table table_;  // its entries stay where they are
};

// Whether a body may grow to `body_bytes`, which are counted in the other two already: those of its
// network, or site, and those of all. A small body (64 KiB) may fill all, a network's only one all
// but a sixteenth, and further ones all but an eighth; the only one of all has no bound but that.
bool may_hold_body(size_t body_bytes, size_t network_bytes, size_t all_bytes, size_t bytes_max);

// Whether a client, or site, of whose requests `served` are served may have one more where `busy`
// threads of `most` serve. Its first takes any thread that is left; further ones leave an eighth.
// Any thread.
bool may_serve(size_t served, size_t busy, size_t most);
// The least number of threads of which one client alone may have `wanted`.
size_t threads_for_one(size_t wanted);

}  // namespace lockstep
