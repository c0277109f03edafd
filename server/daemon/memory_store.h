// Memory that the service manager keeps from one process to the next: systemd's file descriptor
// store (sd_notify(3): FDSTORE, FDSTOREREMOVE, BARRIER; sd_listen_fds(3)).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/daemon/service_notifier.h"

namespace lockstep {

// --keep-weights (auto, true, false) in this environment: without a service manager nothing is
// kept.
MemoryKeeping choose_memory_keeping(std::string_view option,
                                    const EnvironmentVariables& environment);

// The descriptors of memory among those that the service manager has passed to this process, by
// their names; sockets and what else was passed are left alone. Once per process.
std::vector<KeptDescriptor> take_kept_memory(const EnvironmentVariables& environment);

class MemoryStore {
 public:
  // The store holds what was passed to this process. The notifier outlives this.
  MemoryStore(const ServiceNotifier& notifier, const EnvironmentVariables& environment);

  // Makes the store hold this and nothing else of ours, unless it does; returns when the service
  // manager has taken it, or does not answer. A failure is no more than a line in the log: the next
  // start then reads the weights.
  void replace(const MemoryToKeep& memory);

 private:
  bool has_space_for(size_t count) const;
  bool wait_until_taken() const;

  const ServiceNotifier& notifier_;
  std::string limit_;                // FDSTORE, which newer service managers set
  std::vector<std::string> stored_;  // names
};

}  // namespace lockstep
