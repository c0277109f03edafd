// How the hosts of a group find one another: followers connect to the leader and say who they are;
// the leader refuses those that do not fit, and tells all of them where the others are once they
// are complete.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/collectives/host_stream.h"
#include "engine/hosts/control_stream.h"
#include "engine/hosts/frames.h"
#include "engine/hosts/host_options.h"

namespace lockstep {

struct FormedHosts {
  HostNonce group = {};
  std::vector<std::string> addresses;  // of all hosts
  // By host: to the leader, or of the leader to each follower; none elsewhere.
  std::vector<std::unique_ptr<ControlStream>> streams;
  std::unique_ptr<HostListener> listener;  // for links; none where there is one host
};

// Blocks until the group is complete. Fails as HostGroup::form().
Result<FormedHosts> form_hosts(const HostOptions& options, const std::atomic<bool>& stop);

// How often a host says that it lives when it says nothing else.
std::chrono::milliseconds ping_interval(std::chrono::milliseconds patience);

std::string host_name(size_t host, const std::string& address);

}  // namespace lockstep
