// The links of every pair of hosts of a group: which transport they have, and the connections that
// become them. A host connects to all before it, and takes connections of all behind it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/result.h"
#include "engine/collectives/host_stream.h"
#include "engine/collectives/host_transports.h"
#include "engine/hosts/frames.h"

namespace lockstep {

// A host's document before links are opened: the transport it was asked for, and what stands in its
// way; of "auto": in the way of each.
Json link_offer(const std::string& transport, size_t bytes_most);

// The transport that all hosts use: the one that was asked for, or of "auto" the first that all can
// use. `offers`: of all hosts, whose `names` are for messages. The same on all of them. Fails with
// kInvalidInput.
Result<const HostTransport*> choose_transport(std::span<const Json> offers,
                                              std::span<const std::string> names);

// The silence after which a link fails by itself: longer than any step of a pass. A host that is
// lost is noticed on the control connections, and the links are shut down.
inline constexpr std::chrono::milliseconds kLinkPatience = std::chrono::minutes(10);

struct MeshPlace {
  size_t index = 0;  // of this host
  HostNonce group = {};
  std::span<const std::string> addresses;  // of all hosts
  std::span<const std::string> names;
  HostListener& listener;
  HostStreamOptions stream;
  std::function<std::optional<Error>()> failure;  // why to give up
};

// Connections to all other hosts, by host; none at this one's place. All hosts call it. Blocks as
// long as the others need, unless `failure` says why to give up. Connections that are not of this
// group, or not expected, are refused.
Result<std::vector<std::unique_ptr<HostStream>>> open_mesh(const MeshPlace& place);

}  // namespace lockstep
