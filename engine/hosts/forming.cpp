#include "engine/hosts/forming.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "engine/base/log.h"
#include "engine/collectives/host_address.h"
#include "engine/hosts/greetings.h"

namespace lockstep {

namespace {

using Clock = ControlStream::Clock;
using std::chrono::milliseconds;

// The longest wait between two looks at what else there is to do.
constexpr milliseconds kLook{20};
constexpr milliseconds kFirstBackoff{100};
constexpr milliseconds kLongestBackoff{2000};
constexpr std::chrono::seconds kReminder{30};  // of whom is waited for
constexpr size_t kNamesMost = 16;              // of those, in a line

HostStreamOptions stream_options(const HostOptions& options) {
  return {.secret = options.secret, .patience = options.patience};
}

std::string port_part(const std::string& address) {
  const size_t colon = address.rfind(':');
  return colon == std::string::npos ? address : address.substr(colon);
}

// A host that is not this machine's alone is known by names that this machine need not know.
std::string listening_address(const std::string& address) {
  return is_loopback_host(address) ? address : port_part(address);
}

// The address of a peer, with another port.
std::string with_port(const std::string& peer, uint16_t port) {
  return fmt::format("{}:{}", peer.substr(0, peer.rfind(':')), port);
}

Result<void> check_options(const HostOptions& options) {
  if (options.count == 0 || options.count > kMostHosts) {
    return invalid_input("{} hosts were asked for: a group has 1 to {}", options.count, kMostHosts);
  }
  if (options.index >= options.count) {
    return invalid_input("this is host {} of {}: the last one is {}", options.index, options.count,
                         options.count - 1);
  }
  if (options.is_group() && options.addresses.size() != 1 &&
      options.addresses.size() != options.count) {
    return invalid_input("{} addresses were given for {} hosts: give the leader's or all",
                         options.addresses.size(), options.count);
  }
  if (options.group.size() > kGroupBytesMost) {
    return invalid_input("a group's name has {} bytes, more than {}", options.group.size(),
                         kGroupBytesMost);
  }
  if (options.patience < milliseconds(4)) {
    return invalid_input("hosts cannot be lost after {} ms", options.patience.count());
  }
  return {};
}

std::unexpected<Error> stopped() {
  return unavailable("the group of hosts was not complete when this one was stopped");
}

// Says whom this host waits for: once, and from time to time.
constexpr Clock::duration kLeastPause = std::chrono::seconds(1);

class WaitingLog {
 public:
  explicit WaitingLog(const HostOptions& options) : waiting_(options) {}

  // To be called again and again: a change is told within a second, so that many fill no log.
  void tell(const std::string& whom) {
    const auto now = Clock::now();
    waiting_.tell(whom, now);
    const Clock::duration since = now - told_at_;
    if (!told_.empty() && since < (whom == told_ ? kReminder : kLeastPause)) return;
    told_ = whom;
    told_at_ = now;
    spdlog::info("Waits for {}.", whom);
  }

 private:
  Waiting waiting_;
  std::string told_;
  Clock::time_point told_at_;
};

// Pings a connection in time; false: it is lost, since it failed or has been silent.
bool keep_alive(ControlStream& stream, milliseconds patience) {
  const auto now = Clock::now();
  if (now - stream.heard_at() > patience) return false;
  if (now - stream.sent_at() < ping_interval(patience)) return true;
  std::vector<std::byte> ping;
  append_frame(FrameKind::kPing, {}, ping);
  return stream.try_send(ping).has_value();  // one that does not read them goes silent in the end
}

class LeaderForming {
 public:
  LeaderForming(const HostOptions& options, HostListener& listener)
      : options_(options),
        greetings_(listener, options.patience),
        members_(options.count),
        interval_(ping_interval(options.patience)),
        waiting_(options) {}

  Result<FormedHosts> run(const std::atomic<bool>& stop) {
    while (!is_complete()) {
      if (stop) return stopped();
      missing_ = missing();
      waiting_.tell(missing_);
      auto greeted = greetings_.next(kLook);
      if (!greeted) return std::unexpected(greeted.error());
      if (*greeted) greet(std::move(**greeted));
      for (size_t host = 1; host < members_.size(); ++host) look_after(host);
      settle_contenders();
    }
    return welcome();
  }

 private:
  struct Member {
    std::unique_ptr<ControlStream> stream;  // none: it is not there
    Hello hello;
    Clock::time_point came_at;
    std::string knows;  // whom it was told to be missing
  };

  bool is_complete() const {
    return std::ranges::all_of(members_.begin() + 1, members_.end(),
                               [](const Member& member) { return member.stream != nullptr; });
  }

  std::string missing() const {
    std::vector<std::string> names;
    size_t more = 0;
    for (size_t host = 1; host < members_.size(); ++host) {
      if (members_[host].stream) continue;
      if (names.size() == kNamesMost) {
        ++more;
      } else {
        names.push_back(fmt::format("host {}", host));
      }
    }
    if (more > 0) names.push_back(fmt::format("{} more", more));
    return fmt::format("{} of {} hosts", fmt::join(names, ", "), members_.size());
  }

  // Why this host cannot be one of the group; empty: it can.
  std::string misfit(const Hello& hello) const {
    if (hello.version != options_.version) {
      return fmt::format("host 0 runs version {}, this one {}: all hosts run the same",
                         options_.version, hello.version);
    }
    if (hello.group != options_.group) {
      return fmt::format(
          "host 0 is of the group '{}', this one of '{}': all hosts of a group are given the same "
          "--hosts, or the same --hosts-group",
          options_.group, hello.group);
    }
    if (hello.count != options_.count) {
      return fmt::format("host 0 expects {} hosts, this one was given {}", options_.count,
                         hello.count);
    }
    if (hello.index == 0 || hello.index >= options_.count) {
      return fmt::format("this one was given index {}, host 0 expects followers 1 to {}",
                         hello.index, options_.count - 1);
    }
    return {};
  }

  void greet(Greeted&& greeted) {
    const Hello* const hello = std::get_if<Hello>(&greeted.hello);
    if (hello == nullptr) return refuse(*greeted.stream, "the group is not complete yet");
    if (const std::string reason = misfit(*hello); !reason.empty()) {
      return refuse(*greeted.stream, reason);
    }
    Member newcomer = {std::move(greeted.stream), *hello, Clock::now(), {}};
    Member& member = members_[hello->index];
    if (contenders_.size() == kMostHosts) return;
    if (member.stream && member.hello.run != hello->run) {
      contenders_.push_back(std::move(newcomer));  // a second host, or the first one's next run
    } else {
      admit(std::move(newcomer));
    }
  }

  void admit(Member&& newcomer) {
    const uint32_t host = newcomer.hello.index;
    spdlog::info("{} is there.", host_name(host, newcomer.stream->peer()));
    members_[host] = std::move(newcomer);
  }

  // Whether the connection is still of use.
  bool is_alive(ControlStream& stream) const {
    while (true) {
      const auto frame = stream.receive();
      if (!frame) return false;
      if (!*frame) return keep_alive(stream, options_.patience);
      if ((*frame)->kind != FrameKind::kPing) return false;
    }
  }

  void look_after(size_t host) {
    Member& member = members_[host];
    if (!member.stream) return;
    if (is_alive(*member.stream) && tell_missing(member)) return;
    spdlog::warn("{} has gone.", host_name(host, member.stream->peer()));
    member.stream.reset();
  }

  // A follower sees the leader alone. False: it is lost.
  bool tell_missing(Member& member) const {
    if (member.knows == missing_) return true;
    std::vector<std::byte> frame;
    append_text_frame(FrameKind::kMissing, missing_, frame);
    const auto sent = member.stream->try_send(frame);
    if (sent && *sent) member.knows = missing_;
    return sent.has_value();
  }

  // A host that is alive after another of its index has come keeps its place.
  void settle_contenders() {
    for (auto contender = contenders_.begin(); contender != contenders_.end();) {
      const Member& member = members_[contender->hello.index];
      if (!is_alive(*contender->stream)) {
        contender = contenders_.erase(contender);
      } else if (!member.stream) {
        admit(std::move(*contender));
        contender = contenders_.erase(contender);
      } else if (member.stream->heard_at() > contender->came_at + interval_) {
        refuse(*contender->stream,
               fmt::format("there are two hosts of index {}: one at {}, and this one",
                           contender->hello.index, member.stream->peer()));
        contender = contenders_.erase(contender);
      } else {
        ++contender;
      }
    }
  }

  std::string address_of(size_t host) const {
    if (host < options_.addresses.size()) return options_.addresses[host];
    const Member& member = members_[host];
    if (!member.hello.listens_at.empty()) return member.hello.listens_at;
    return with_port(member.stream->peer(), member.hello.listens_port);
  }

  FormedHosts welcome() {
    FormedHosts formed;
    formed.group = random_nonce();
    for (size_t host = 0; host < members_.size(); ++host) {
      formed.addresses.push_back(address_of(host));
    }
    std::vector<std::byte> frame;
    append_frame(Welcome{formed.group, formed.addresses}, frame);
    for (Member& member : members_) {
      // The group notices a connection that is lost by now.
      if (member.stream && !member.stream->send(frame)) member.stream->shut_down();
      formed.streams.push_back(std::move(member.stream));
    }
    return formed;
  }

  const HostOptions& options_;
  Greetings greetings_;
  std::string missing_;             // hosts, at the last look
  std::vector<Member> members_;     // by host
  std::vector<Member> contenders_;  // for places that are taken
  milliseconds interval_;
  WaitingLog waiting_;
};

class FollowerForming {
 public:
  FollowerForming(const HostOptions& options, const std::atomic<bool>& stop)
      : options_(options),
        stop_(stop),
        leader_(host_name(0, options.addresses[0])),
        run_(random_nonce()),
        waiting_(options) {}

  Result<FormedHosts> run() {
    milliseconds backoff = kFirstBackoff;
    while (!stop_) {
      waiting_.tell(leader_ + reason_);
      auto connected = connect_host(options_.addresses[0], stream_options(options_));
      if (connected) {
        const auto since = Clock::now();
        auto stream = std::make_unique<ControlStream>(std::move(*connected));
        auto welcome = join(*stream);
        // Somebody who takes connections and ends them is no leader, and is not to be pressed.
        if (Clock::now() - since > kLongestBackoff) backoff = kFirstBackoff;
        if (!welcome) return std::unexpected(welcome.error());
        if (*welcome) return formed(std::move(**welcome), std::move(stream));
      } else if (connected.error().kind != ErrorKind::kUnavailable) {
        return std::unexpected(connected.error());
      } else {
        reason_ = ": " + connected.error().message;
      }
      const auto until = Clock::now() + backoff;
      while (!stop_ && Clock::now() < until) std::this_thread::sleep_for(kLook);
      backoff = std::min(2 * backoff, kLongestBackoff);
    }
    return stopped();
  }

 private:
  using Answer = Result<std::optional<Welcome>>;

  // The leader's welcome; none: the connection was lost before it came. Fails where this host is
  // refused, cannot listen or is stopped.
  Answer join(ControlStream& stream) {
    if (auto listening = listen(stream); !listening) return std::unexpected(listening.error());
    std::vector<std::byte> frame;
    append_frame(hello(), frame);
    if (const auto sent = stream.send(frame); !sent) return lost(sent.error().message);
    missing_.clear();  // until the leader tells
    while (!stop_) {
      waiting_.tell(missing_.empty() ? leader_ : fmt::format("{}; {} is there", missing_, leader_));
      const auto received = stream.receive_within(kLook);
      if (!received) return lost(received.error().message);
      if (*received) {
        if (auto answer = judge(**received)) return *std::move(answer);
      }
      if (!keep_alive(stream, options_.patience)) return lost("it has been silent");
    }
    return stopped();
  }

  Answer lost(const std::string& reason) {
    reason_ = fmt::format(", which was lost before the group was complete: {}", reason);
    return Answer(std::nullopt);
  }

  // An answer that ends the waiting.
  std::optional<Answer> judge(const Frame& frame) {
    if (frame.kind == FrameKind::kPing) return std::nullopt;
    if (frame.kind == FrameKind::kMissing) {
      missing_ = decode_text(frame.payload);
      return std::nullopt;
    }
    if (frame.kind == FrameKind::kRefusal) {
      return Answer(invalid_input("{} refuses this host: {}", leader_, decode_text(frame.payload)));
    }
    if (frame.kind != FrameKind::kWelcome) return lost("it sent a frame out of order");
    auto welcome = decode_welcome(frame.payload);
    if (!welcome) return lost(welcome.error().message);
    if (welcome->addresses.size() != options_.count) return lost("its group is another one");
    return Answer(std::move(*welcome));
  }

  bool has_address() const { return options_.index < options_.addresses.size(); }

  Result<void> listen(const ControlStream& stream) {
    if (listener_) return {};
    std::string address = ":0";
    if (has_address()) {
      address = listening_address(options_.addresses[options_.index]);
    } else if (is_loopback_host(options_.addresses[0])) {
      const std::string local = stream.local_address();
      address = local.contains(':') ? fmt::format("[{}]:0", local) : local + ":0";
    }
    auto listener = HostListener::open(address, stream_options(options_));
    if (!listener) return std::unexpected(listener.error());
    listener_ = std::move(*listener);
    return {};
  }

  Hello hello() const {
    Hello hello;
    hello.index = static_cast<uint32_t>(options_.index);
    hello.count = static_cast<uint32_t>(options_.count);
    hello.run = run_;
    hello.version = options_.version;
    if (has_address()) hello.listens_at = options_.addresses[options_.index];
    hello.listens_port = listener_->port();
    hello.group = options_.group;
    return hello;
  }

  FormedHosts formed(Welcome&& welcome, std::unique_ptr<ControlStream> stream) {
    FormedHosts formed;
    formed.group = welcome.group;
    formed.addresses = std::move(welcome.addresses);
    formed.addresses[0] = options_.addresses[0];  // as this host reaches it
    formed.streams.resize(options_.count);
    formed.streams[0] = std::move(stream);
    formed.listener = std::move(listener_);
    return formed;
  }

  const HostOptions& options_;
  const std::atomic<bool>& stop_;
  std::string leader_;   // its name
  std::string reason_;   // why there is no connection to it
  std::string missing_;  // hosts, as the leader tells
  HostNonce run_;
  std::unique_ptr<HostListener> listener_;
  WaitingLog waiting_;
};

Result<FormedHosts> form_as_leader(const HostOptions& options, const std::atomic<bool>& stop) {
  auto listener =
      HostListener::open(listening_address(options.addresses[0]), stream_options(options));
  if (!listener) return std::unexpected(listener.error());
  auto formed = LeaderForming(options, **listener).run(stop);
  if (formed) formed->listener = std::move(*listener);
  return formed;
}

}  // namespace

Result<FormedHosts> form_hosts(const HostOptions& options, const std::atomic<bool>& stop) {
  if (auto checked = check_options(options); !checked) return std::unexpected(checked.error());
  if (!options.is_group()) {
    FormedHosts alone;
    alone.addresses = options.addresses;
    alone.addresses.resize(1);
    alone.streams.resize(1);
    return alone;
  }
  return options.leads() ? form_as_leader(options, stop) : FollowerForming(options, stop).run();
}

milliseconds ping_interval(milliseconds patience) {
  return std::min(patience / 4, milliseconds(250));
}

std::string host_name(size_t host, const std::string& address) {
  return fmt::format("host {} ({})", host, address);
}

}  // namespace lockstep
