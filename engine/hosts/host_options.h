// The group of hosts that compute one model together, as it was asked for.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/secret.h"

namespace lockstep {

struct HostOptions {
  size_t count = 1;  // of hosts; 1: this one alone
  size_t index = 0;  // this one's; 0 leads
  // "name:port" of every host, the leader's first; or the leader's alone, where the others tell it
  // theirs.
  std::vector<std::string> addresses;
  // The group's name, at most 256 bytes: hosts that were given another one are refused, whatever
  // else they know.
  std::string group;
  // Known to all hosts, from a file; none: connections are neither encrypted nor authenticated.
  std::optional<SecretKey> secret;
  bool may_be_insecure = false;  // no secret is needed, wherever the hosts are
  // How long a host may be silent until it counts as lost.
  std::chrono::milliseconds patience = std::chrono::seconds(5);
  std::string version;            // of this program; all hosts run the same one
  std::string transport = "tcp";  // of exchanges during a pass: a row of host_transports()
  // Is told whom this host waits for ("host 1 of 2 hosts"), by the thread that waits: when it
  // begins, about once a second while it does, and an empty text once it waits no more. No call may
  // come for some seconds, while an address is looked up or connected to. May be empty.
  std::function<void(const std::string& whom)> on_waiting;
  // Waiting for other hosts ends when it is true; null: never. Outlives the engine.
  const std::atomic<bool>* stop = nullptr;

  // No group is formed: the options are looked at, and the engine is not to be loaded.
  bool is_checked_only = false;

  bool is_group() const { return count > 1; }
  bool leads() const { return index == 0; }
};

// One wait: HostOptions::on_waiting hears of it until it ends. One thread.
class Waiting {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::duration kTellEvery = std::chrono::seconds(1);

  explicit Waiting(const HostOptions& options) : options_(options) {}
  // Tells that the wait is over.
  ~Waiting() {
    if (told_at_ != Clock::time_point()) options_.on_waiting({});
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // To be called again and again. `whom` is not empty.
  void tell(const std::string& whom, Clock::time_point now = Clock::now()) {
    if (!options_.on_waiting) return;
    if (told_at_ != Clock::time_point() && now - told_at_ < kTellEvery) return;
    told_at_ = now;
    options_.on_waiting(whom);
  }

 private:
  const HostOptions& options_;  // outlives this
  Clock::time_point told_at_;   // the epoch: never
};

}  // namespace lockstep
