// This host's part in a group of hosts, once it has loaded its ranks. A follower computes the
// passes that the leader asks for; when the group fails, it forms another with its weights still in
// memory. The leader watches the group: when it fails, the engine does, whether it computes or not.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "engine/base/result.h"
#include "engine/hosts/batch_message.h"
#include "engine/hosts/host_group.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/hosts/host_exchange.h"
#include "engine/serving/engine_loop.h"

namespace lockstep {

class HostMember {
 public:
  virtual ~HostMember() = default;
  // Any thread; lock-free. False: the group has failed, and there is no other yet.
  virtual bool is_together() const = 0;
  // Returns when they are not, or the time is over. Any thread.
  void wait_until_apart(double seconds) const;
};

// `loop`: whose engine fails with the group. All must outlive this.
std::unique_ptr<HostMember> watch_group(const HostGroup& group, Executor& executor,
                                        EngineLoop& loop);

// Forms the next group, agrees in it on the ranks that are there, opens its links. Blocks until it
// has, or `stop` is true. `formed`: called as soon as the group is there; to make it fail ends what
// follows. Fails with kUnavailable where another try may succeed; any other failure is the
// follower's end.
using FormAgain = std::function<Result<std::unique_ptr<HostGroup>>(
    const std::atomic<bool>& stop, const std::function<void(HostGroup*)>& formed)>;

// `group`: the first one. `loop`: whose engine fails when the follower cannot go on.
std::unique_ptr<HostMember> follow_leader(std::unique_ptr<HostGroup>& group, Executor& executor,
                                          HostExchange& exchange, const BatchLimits& limits,
                                          FormAgain form_again, EngineLoop& loop);

}  // namespace lockstep
