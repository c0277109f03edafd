// The hosts that compute one model together: how they find one another, agree, and follow the
// leader's passes. What they agree on is not known here: documents in, documents out.
//
// Each follower has one control connection to the leader; each pair of hosts has one link for what
// ranks exchange. A thread of the group's own keeps the control connections alive and notices the
// silent: a host of which nothing was heard for HostOptions::patience has failed, and with it the
// group. A group that has failed is done with; another may be formed in its place.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/result.h"
#include "engine/collectives/host_link.h"
#include "engine/hosts/host_options.h"

namespace lockstep {

class HostGroup {
 public:
  // Connects all hosts; blocks until they are there, and says in the log whom it waits for. Fails
  // with kInvalidInput where hosts were given what does not fit together (two of one index, another
  // count, another version of the protocol), with kMachineRefused where this one cannot listen,
  // with kUnavailable once `stop` is true.
  static Result<std::unique_ptr<HostGroup>> form(const HostOptions& options,
                                                 const std::atomic<bool>& stop);
  // The same until the options' `stop`.
  static Result<std::unique_ptr<HostGroup>> form(const HostOptions& options) {
    static const std::atomic<bool> never = false;
    return form(options, options.stop != nullptr ? *options.stop : never);
  }
  // Tells the others that this host leaves, if the group has not failed.
  virtual ~HostGroup() = default;

  virtual size_t count() const = 0;
  virtual size_t index() const = 0;
  bool leads() const { return index() == 0; }
  virtual const std::string& name(size_t host) const = 0;  // "host 1 (10.0.0.2:7070)"

  // Every host's document, by index. All hosts call it, in the same order; until the last one has,
  // the others wait, however long that takes, as long as it is alive. A document has at most 1 MiB.
  // Between passes. Fails as the group has.
  virtual Result<std::vector<nlohmann::ordered_json>> gather(const nlohmann::ordered_json& own) = 0;

  // Opens the links of every pair of hosts, by the transport that was asked for; "auto": the first
  // that all hosts can use. All hosts call it, once. `bytes_most`: of one exchange. By a transport
  // that joins GPUs there are none.
  virtual Result<void> open_links(size_t bytes_most) = 0;
  virtual HostLink& link(size_t host) = 0;  // not of this host itself

  // The longest command: the same on all hosts, which call it before the first; without it 16 MiB.
  // Fails with kInvalidInput beyond 1 GiB.
  virtual Result<void> bound_commands(size_t bytes_most) = 0;
  // From here on the leader leads. Leader: a command to all followers; returns when it is on its
  // way. No allocation once its size has been seen.
  virtual Result<void> send_command(std::span<const std::byte> command) = 0;
  // Follower: the leader's next command; blocks. Valid until the next call. Fails as the group has.
  virtual Result<std::span<const std::byte>> next_command() = 0;

  // Makes the group fail with this reason: the other hosts hear of it, calls in progress on the
  // links and here fail. Any thread; the first reason stays.
  virtual void fail(const Error& reason) noexcept = 0;
  // Why the group has failed: a host that was lost, or told its reason; none: it has not. Any
  // thread.
  virtual std::optional<Error> failure() const = 0;
  // Is called once, with the reason, when the group has failed and the others have been told: by a
  // thread of the group's, or by this call where that was before. Not for a group that ends. One
  // for a group: another replaces it. What it uses has to last as long as it does.
  virtual void on_failure(std::function<void(const Error&)> call) = 0;
};

}  // namespace lockstep
