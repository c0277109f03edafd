// Hosts of one process: groups whose links are queues of bytes in memory. Each host is a thread's.
// They compute the same batches by themselves, so commands go nowhere.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/hosts/host_group.h"

namespace lockstep {

class LoopbackHosts {
 public:
  explicit LoopbackHosts(size_t count);
  ~LoopbackHosts();

  HostGroup& group(size_t host);
  // The bytes that this host has sent to all others.
  size_t sent_bytes(size_t host) const;
  // Every link fails from now on, at both ends.
  void cut();

 private:
  struct Queue;
  class Link;
  class Group;

  std::vector<std::unique_ptr<Queue>> queues_;  // [from][to]
  std::vector<std::unique_ptr<Group>> groups_;
};

}  // namespace lockstep
