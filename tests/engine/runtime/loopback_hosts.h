// Hosts of one process: groups whose links are queues of bytes in memory, or those of a transport.
// Each host is a thread's. They compute the same batches by themselves, so commands go nowhere.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/collectives/host_transports.h"
#include "engine/hosts/host_group.h"

namespace lockstep {

class LoopbackHosts {
 public:
  // `patience`: of exchanges in pieces; others wait for any time.
  explicit LoopbackHosts(size_t count,
                         std::chrono::milliseconds patience = std::chrono::seconds(60));
  // All below but group() is for queues alone.
  LoopbackHosts(size_t count, const HostTransport& transport);
  ~LoopbackHosts();

  HostGroup& group(size_t host);
  // The bytes that this host has sent to all others.
  size_t sent_bytes(size_t host) const;
  // Every link fails from now on, at both ends.
  void cut();
  // They do so when this host has sent so many bytes.
  void cut_behind(size_t host, size_t bytes);
  // Pieces that this host sends vanish from now on.
  void lose_pieces(size_t host);

 private:
  struct Queue;
  class Link;
  class Group;

  std::vector<std::unique_ptr<Queue>> queues_;  // [from][to]
  std::vector<std::unique_ptr<Group>> groups_;
};

}  // namespace lockstep
