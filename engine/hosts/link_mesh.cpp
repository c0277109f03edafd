#include "engine/hosts/link_mesh.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "engine/hosts/control_stream.h"
#include "engine/hosts/greetings.h"

namespace lockstep {

namespace {

constexpr auto kReachWithin = std::chrono::seconds(15);

using Clock = ControlStream::Clock;
using std::chrono::milliseconds;

constexpr milliseconds kMeshLook{20};  // between two looks at whether the group has failed

// A host's word on a transport; none: it does not know it.
const std::string* obstacle_of(const Json& offer, std::string_view transport) {
  if (!offer.is_object() || !offer.contains("obstacles")) return nullptr;
  const Json& obstacles = offer["obstacles"];
  const auto found = obstacles.find(transport);
  return found == obstacles.end() ? nullptr : found->get_ptr<const std::string*>();
}

// Why not all hosts can use a transport; empty: they can.
std::string obstacle_among(std::span<const Json> offers, std::span<const std::string> names,
                           std::string_view transport) {
  for (size_t host = 0; host < offers.size(); ++host) {
    const std::string* const obstacle = obstacle_of(offers[host], transport);
    if (obstacle == nullptr) return fmt::format("{} does not know it", names[host]);
    if (!obstacle->empty()) return fmt::format("{} cannot use it: {}", names[host], *obstacle);
  }
  return {};
}

class Mesh {
 public:
  explicit Mesh(const MeshPlace& place)
      : place_(place),
        greetings_(place.listener, place.stream.patience),
        streams_(place.addresses.size()) {}

  Result<std::vector<std::unique_ptr<HostStream>>> open() {
    for (size_t host = 0; host < place_.index; ++host) {
      if (auto connected = connect(host); !connected) return std::unexpected(connected.error());
    }
    size_t missing = streams_.size() - place_.index - 1;
    while (missing > 0) {
      if (const auto failure = place_.failure()) return std::unexpected(*failure);
      auto greeted = greetings_.next(kMeshLook);
      if (!greeted) return std::unexpected(greeted.error());
      if (*greeted && take(std::move(**greeted))) --missing;
    }
    return std::move(streams_);
  }

 private:
  Result<void> connect(size_t host) {
    auto connected = reach(host);
    if (!connected) return std::unexpected(connected.error());
    ControlStream stream(std::move(*connected));
    LinkHello hello;
    hello.group = place_.group;
    hello.from = static_cast<uint32_t>(place_.index);
    hello.to = static_cast<uint32_t>(host);
    std::vector<std::byte> frame;
    append_frame(hello, frame);
    if (auto sent = stream.send(frame); !sent) return lost(host, sent.error().message);
    // The other host may have others to wait for before it answers.
    while (true) {
      if (const auto failure = place_.failure()) return std::unexpected(*failure);
      const auto answer = stream.receive_within(kMeshLook);
      if (!answer) return lost(host, answer.error().message);
      if (!*answer) continue;
      if ((*answer)->kind == FrameKind::kRefusal) {
        return lost(host, decode_text((*answer)->payload));
      }
      if ((*answer)->kind != FrameKind::kLinkWelcome) return lost(host, "it answers otherwise");
      streams_[host] = stream.release();
      return {};
    }
  }

  // All hosts listen since the group was formed: one that cannot be reached for long never will.
  Result<std::unique_ptr<HostStream>> reach(size_t host) {
    const auto deadline = Clock::now() + kReachWithin;
    while (true) {
      auto connected = connect_host(place_.addresses[host], place_.stream);
      if (connected) return connected;
      if (const auto failure = place_.failure()) return std::unexpected(*failure);
      if (connected.error().kind != ErrorKind::kUnavailable || Clock::now() > deadline) {
        return lost(host, connected.error().message);
      }
      std::this_thread::sleep_for(kMeshLook);
    }
  }

  std::unexpected<Error> lost(size_t host, std::string_view reason) const {
    return machine_refused("{} has no link with {}: {}", place_.names[place_.index],
                           place_.names[host], reason);
  }

  // Whether it is one of the connections that are missing.
  bool take(Greeted&& greeted) {
    const LinkHello* const hello = std::get_if<LinkHello>(&greeted.hello);
    ControlStream& stream = *greeted.stream;
    if (hello == nullptr) {
      // It comes again, and is one of the next group if this one fails.
      stream.shut_down();
      return false;
    }
    if (hello->group != place_.group) {
      refuse(stream, "this link is of another group");
      return false;
    }
    if (hello->to != place_.index || hello->from <= place_.index ||
        hello->from >= streams_.size() || streams_[hello->from]) {
      refuse(stream,
             fmt::format("no link from host {} to {} is missing here", hello->from, hello->to));
      return false;
    }
    std::vector<std::byte> frame;
    append_frame(FrameKind::kLinkWelcome, {}, frame);
    if (!stream.send(frame)) return false;
    streams_[hello->from] = stream.release();
    return true;
  }

  const MeshPlace& place_;
  Greetings greetings_;
  std::vector<std::unique_ptr<HostStream>> streams_;
};

}  // namespace

Result<std::vector<std::unique_ptr<HostStream>>> open_mesh(const MeshPlace& place) {
  return Mesh(place).open();
}

Json link_offer(const std::string& transport, size_t bytes_most) {
  Json offer = {{"transport", transport}, {"bytes_most", bytes_most}};
  offer["obstacles"] = Json::object();
  for (const HostTransport& row : host_transports()) {
    // To look for an obstacle may load a library.
    if (transport == "auto" ? row.joins_gpus : transport != row.name) continue;
    offer["obstacles"][std::string(row.name)] = row.obstacle();
  }
  return offer;
}

Result<const HostTransport*> choose_transport(std::span<const Json> offers,
                                              std::span<const std::string> names) {
  const auto said = [&](size_t host, const char* what) {
    return offers[host].is_object() && offers[host].contains(what) ? offers[host][what] : Json();
  };
  for (const char* const what : {"transport", "bytes_most"}) {
    for (size_t host = 1; host < offers.size(); ++host) {
      if (said(host, what) == said(0, what)) continue;
      return invalid_input("{} has {} {} for links, and {} has {}: give all hosts the same",
                           names[0], what, to_text(said(0, what)), names[host],
                           to_text(said(host, what)));
    }
  }
  const Json asked = said(0, "transport");
  if (!asked.is_string()) return invalid_input("{} names no transport", names[0]);
  if (asked != "auto") {
    const auto& name = asked.get_ref<const std::string&>();
    auto row = find_host_transport(name);
    if (!row) return row;
    const std::string obstacle = obstacle_among(offers, names, name);
    if (!obstacle.empty()) return invalid_input("the transport {}: {}", name, obstacle);
    return row;
  }
  std::string reasons;
  for (const HostTransport& row : host_transports()) {
    if (row.joins_gpus) continue;
    const std::string obstacle = obstacle_among(offers, names, row.name);
    if (obstacle.empty()) return &row;
    reasons += fmt::format("; {}: {}", row.name, obstacle);
  }
  return invalid_input("no transport serves all hosts{}", reasons);
}

}  // namespace lockstep
