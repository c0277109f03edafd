#include "engine/hosts/host_group.h"

#include <emmintrin.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/descriptor.h"
#include "engine/base/log.h"
#include "engine/base/mutex.h"
#include "engine/hosts/control_stream.h"
#include "engine/hosts/forming.h"
#include "engine/hosts/frames.h"
#include "engine/hosts/link_mesh.h"
#include "engine/hosts/peer.h"

namespace lockstep {
namespace {

using Clock = ControlStream::Clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// A follower looks for the next command so long before it sleeps: about as long as the leader needs
// between two passes.
constexpr microseconds kSpin{300};
// The longest wait for a descriptor, after which all else is looked at.
constexpr milliseconds kLongestSleep{250};
constexpr milliseconds kRetry{1};       // of reading while another thread sends
constexpr milliseconds kLeaving{200};   // to tell the others
constexpr uint64_t kWake = UINT64_MAX;  // of an event: not a peer's

class FormedGroup final : public HostGroup {
 public:
  FormedGroup(const HostOptions& options, FormedHosts&& formed)
      : options_(options),
        addresses_(std::move(formed.addresses)),
        nonce_(formed.group),
        listener_(std::move(formed.listener)),
        links_(options.count),
        documents_(options.count) {
    for (size_t host = 0; host < addresses_.size(); ++host) {
      names_.push_back(host_name(host, addresses_[host]));
      if (!formed.streams[host]) continue;
      peers_.push_back(std::make_unique<Peer>());
      peers_.back()->host = host;
      peers_.back()->stream = std::move(formed.streams[host]);
      peers_.back()->stream->bound_payloads(command_bytes_most_);
    }
    append_frame(FrameKind::kPing, {}, ping_);
  }

  ~FormedGroup() override {
    {
      const MutexLock lock(mutex_);
      is_ending_ = true;
    }
    wake();
    if (thread_.joinable()) thread_.join();
  }

  // Starts what keeps the connections alive.
  Result<void> start() {
    epoll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
    wake_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!epoll_.is_open() || !wake_.is_open()) {
      return machine_refused("there are no descriptors left to watch hosts with");
    }
    bool is_watching = watch(EPOLL_CTL_ADD, wake_.number(), EPOLLIN, kWake);
    for (size_t index = 0; index < peers_.size(); ++index) {
      is_watching = watch(EPOLL_CTL_ADD, peers_[index]->stream->descriptor(),
                          EPOLLIN | EPOLLONESHOT, index) &&
                    is_watching;
    }
    if (!is_watching) return machine_refused("the connections of hosts cannot be watched");
    thread_ = std::thread([this] { run(); });
    return {};
  }

  size_t count() const override { return addresses_.size(); }
  size_t index() const override { return options_.index; }
  const std::string& name(size_t host) const override {
    CHECK(host < names_.size(), "host {} of {}", host, names_.size());
    return names_[host];
  }

  Result<std::vector<Json>> gather(const Json& own) override;
  Result<void> open_links(size_t bytes_most) override;
  HostLink& link(size_t host) override {
    CHECK(host < links_.size() && links_[host], "there is no link with host {}", host);
    return *links_[host];
  }
  Result<void> bound_commands(size_t bytes_most) override;
  Result<void> send_command(std::span<const std::byte> command) override;
  Result<std::span<const std::byte>> next_command() override;

  void fail(const Error& reason) noexcept override {
    log_surely([&] {
      fail(reason, {reason.kind, fmt::format("{}: {}", names_[index()], reason.message)});
    });
  }
  std::optional<Error> failure() const override {
    const MutexLock lock(mutex_);
    return failure_;
  }
  void on_failure(FailureCall::Call call) override { failure_call_.set(std::move(call)); }

 private:
  // `told`: to the other hosts.
  void fail(const Error& reason, const Error& told) LOCKSTEP_EXCLUDES(mutex_);
  // The same, of what every host may know.
  void fail_alike(const Error& reason) { fail(reason, reason); }
  void lose(const Peer& peer, const Error& error) {
    fail_alike({ErrorKind::kMachineRefused,
                fmt::format("{} is lost: {}", names_[peer.host], error.message)});
  }
  void lose_in_sending(Peer& peer, const Error& error);
  std::unexpected<Error> failed_or(const Error& error) const {
    return std::unexpected(failure().value_or(error));
  }

  bool watch(int operation, int descriptor, uint32_t events, uint64_t data) {
    epoll_event event{.events = events, .data = {.u64 = data}};
    return ::epoll_ctl(epoll_.number(), operation, descriptor, &event) == 0;
  }
  // Whether the control thread is told that there is something to read of a peer: once.
  void arm(size_t index, bool is_armed) {
    watch(EPOLL_CTL_MOD, peers_[index]->stream->descriptor(),
          EPOLLONESHOT | (is_armed ? uint32_t{EPOLLIN} : 0U), index);
  }
  void wake() noexcept {
    if (wake_.is_open()) ::eventfd_write(wake_.number(), 1);
  }

  // The control thread.
  void run();
  bool is_over() const {
    const MutexLock lock(mutex_);
    return is_ending_ || failure_;
  }
  void wait();
  void read(size_t index);
  bool read_all(Peer& peer);
  void tend(Peer& peer);
  void leave();

  // The reading thread's.
  void handle(Peer& peer, const Frame& frame);
  void keep_document(const Peer& peer, const Frame& frame);
  void keep_command(const Peer& peer);

  Result<void> send_document(const HostDocument& document, Peer& peer);
  Result<std::vector<std::string>> wait_for_documents();
  std::vector<std::string> take_documents() LOCKSTEP_REQUIRES(mutex_);
  Result<void> make_links(std::vector<std::unique_ptr<HostStream>> streams,
                          const HostTransport& transport, size_t bytes_most);
  void keep_link(size_t host, std::unique_ptr<HostLink> link);
  // Fills command_ with the first command that has come. Fails as the group has when none has.
  Result<bool> take_command();
  Result<void> read_command();

  const HostOptions options_;
  std::vector<std::string> addresses_;
  std::vector<std::string> names_;
  HostNonce nonce_;
  std::unique_ptr<HostListener> listener_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::byte> ping_;
  size_t command_bytes_most_ = kFirstCommandBytesMost;
  Descriptor epoll_;
  Descriptor wake_;
  std::vector<std::byte> command_frame_;  // the leader's
  std::vector<std::byte> command_;        // a follower's: the one at hand
  // By host. Filled with mutex_ held; failing calls shut_down() with it held.
  std::vector<std::unique_ptr<HostLink>> links_;

  mutable Mutex mutex_;
  ConditionVariable changed_;
  bool is_ending_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::optional<Error> failure_ LOCKSTEP_GUARDED_BY(mutex_);
  Error told_ LOCKSTEP_GUARDED_BY(mutex_);
  // By host: what has come of the gathering at hand.
  std::vector<std::optional<std::string>> documents_ LOCKSTEP_GUARDED_BY(mutex_);
  CommandRing commands_ LOCKSTEP_GUARDED_BY(mutex_);
  FailureCall failure_call_;

  std::thread thread_;  // last: it uses all of the above
};

void FormedGroup::fail(const Error& reason, const Error& told) {
  {
    const MutexLock lock(mutex_);
    if (failure_ || is_ending_) return;
    failure_ = reason;
    told_ = told;
    for (const auto& link : links_) {
      if (link) link->shut_down();
    }
  }
  log_surely([&] { spdlog::warn("The group of hosts has failed: {}.", reason.message); });
  changed_.notify_all();
  wake();
}

// The peer may have told why before it went.
void FormedGroup::lose_in_sending(Peer& peer, const Error& error) {
  if (!peer.reading.try_take()) return;  // who reads finds out
  read_all(peer);
  lose(peer, error);
  peer.reading.give();
}

void FormedGroup::run() {
  while (!is_over()) {
    wait();
    for (const auto& peer : peers_) tend(*peer);
  }
  leave();
  if (const auto reason = failure()) failure_call_.tell(*reason);
}

void FormedGroup::wait() {
  const bool reads_again =
      std::ranges::any_of(peers_, [](const auto& peer) { return peer->read_again; });
  const milliseconds most = reads_again ? kRetry : ping_interval(options_.patience);
  std::array<epoll_event, 16> events;
  const int count =
      ::epoll_wait(epoll_.number(), events.data(), events.size(), static_cast<int>(most.count()));
  for (int each = 0; each < count; ++each) {
    const uint64_t index = events[static_cast<size_t>(each)].data.u64;
    if (index == kWake) {
      eventfd_t ignored = 0;
      ::eventfd_read(wake_.number(), &ignored);
    } else {
      read(index);
    }
  }
  for (size_t index = 0; index < peers_.size(); ++index) {
    if (std::exchange(peers_[index]->read_again, false)) read(index);
  }
}

void FormedGroup::read(size_t index) {
  Peer& peer = *peers_[index];
  if (!peer.reading.try_take()) return;  // who reads arms it
  const bool reads_on = read_all(peer);
  peer.read_again = reads_on && peer.stream->was_busy();
  if (reads_on && !peer.read_again) arm(index, true);
  peer.reading.give();
}

// All that is there; false: nothing more is to be read now.
bool FormedGroup::read_all(Peer& peer) {
  while (true) {
    {
      const MutexLock lock(mutex_);
      if (failure_ || commands_.is_full()) return false;
    }
    const auto frame = peer.stream->receive();
    if (!frame) {
      lose(peer, frame.error());
      return false;
    }
    if (!*frame) return true;
    handle(peer, **frame);
  }
}

void FormedGroup::tend(Peer& peer) {
  const milliseconds interval = ping_interval(options_.patience);
  if (Clock::now() - peer.stream->sent_at() >= interval / 2) {
    const auto sent = peer.stream->try_send(ping_);
    if (!sent) lose_in_sending(peer, sent.error());
  }
  if (!peer.is_silent(options_.patience)) return;
  const double seconds = std::chrono::duration<double>(options_.patience).count();
  fail_alike({ErrorKind::kMachineRefused,
              fmt::format("{} has been silent for {} s", names_[peer.host], seconds)});
}

// Says why, and cuts all connections: a call that waits on one goes on.
void FormedGroup::leave() {
  std::vector<std::byte> last;
  {
    const MutexLock lock(mutex_);
    if (failure_) {
      append_failure(told_, last);
    } else {
      append_frame(FrameKind::kGoodbye, {}, last);
    }
  }
  const auto deadline = Clock::now() + kLeaving;
  for (const auto& peer : peers_) {
    say_last(*peer->stream, last, deadline);
    // A connection that is closed with something unread in it may take the last words with it.
    if (peer->reading.try_take()) {
      for (auto frame = peer->stream->receive(); frame && *frame && Clock::now() < deadline;) {
        frame = peer->stream->receive();
      }
      peer->reading.give();
    }
    peer->stream->shut_down();
  }
}

void FormedGroup::handle(Peer& peer, const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::kPing:
      return;
    case FrameKind::kGoodbye:
      return fail_alike(
          {ErrorKind::kMachineRefused, fmt::format("{} has left", names_[peer.host])});
    case FrameKind::kFailure:
      return fail_alike(decode_failure(frame.payload));
    case FrameKind::kDocument:
      return keep_document(peer, frame);
    case FrameKind::kCommand:
      if (!leads()) return keep_command(peer);
      break;
    case FrameKind::kHello:
    case FrameKind::kRefusal:
    case FrameKind::kWelcome:
    case FrameKind::kLinkHello:
    case FrameKind::kLinkWelcome:
    case FrameKind::kMissing:
      break;
  }
  lose(peer, {ErrorKind::kInvalidInput, fmt::format("it sent a frame of kind {} out of order",
                                                    static_cast<int>(frame.kind))});
}

void FormedGroup::keep_document(const Peer& peer, const Frame& frame) {
  const auto document = decode_document(frame.payload);
  if (!document) return lose(peer, document.error());
  const size_t host = document->host;
  const bool is_expected =
      host < count() && host != index() && (leads() ? host == peer.host : peer.host == 0);
  {
    const MutexLock lock(mutex_);
    if (is_expected && !documents_[host]) {
      documents_[host] = document->text;
      changed_.notify_all();
      return;
    }
  }
  lose(peer,
       {ErrorKind::kInvalidInput, fmt::format("it sent a document of host {} out of order", host)});
}

void FormedGroup::keep_command(const Peer& peer) {
  const MutexLock lock(mutex_);
  std::vector<std::byte> command;
  peer.stream->swap_payload(command);
  commands_.push(command);
  peer.stream->swap_payload(command);  // a buffer for the next one
}

Result<void> FormedGroup::send_document(const HostDocument& document, Peer& peer) {
  std::vector<std::byte> frame;
  append_frame(document, frame);
  const auto sent = peer.stream->send(frame);
  if (sent) return {};
  lose_in_sending(peer, sent.error());
  return failed_or(sent.error());
}

Result<std::vector<std::string>> FormedGroup::wait_for_documents() {
  Waiting waiting(options_);
  const auto is_there = [](const std::optional<std::string>& document) {
    return document.has_value();
  };
  while (true) {
    std::vector<std::string> missing;
    {
      const MutexLock lock(mutex_);
      const auto deadline = ConditionVariable::deadline_in(Waiting::kTellEvery);
      while (!std::ranges::all_of(documents_, is_there) && !failure_ &&
             changed_.wait_until(mutex_, deadline)) {
      }
      if (std::ranges::all_of(documents_, is_there)) return take_documents();
      if (failure_) return std::unexpected(*failure_);
      for (size_t host = 0; host < count(); ++host) {
        if (!documents_[host]) missing.push_back(names_[host]);
      }
    }
    waiting.tell(fmt::format("{}", fmt::join(missing, ", ")));
  }
}

std::vector<std::string> FormedGroup::take_documents() {
  std::vector<std::string> texts;
  for (std::optional<std::string>& document : documents_) {
    texts.push_back(std::move(*document));
    document.reset();
  }
  return texts;
}

Result<std::vector<Json>> FormedGroup::gather(const Json& own) {
  std::string text = to_text(own);
  if (text.size() > kDocumentBytesMost) {
    fail({ErrorKind::kInvalidInput,
          fmt::format("a document of {} bytes is beyond {}", text.size(), kDocumentBytesMost)});
  }
  if (const auto failed = failure()) return std::unexpected(*failed);
  if (!leads()) {
    const HostDocument document = {static_cast<uint32_t>(index()), text};
    if (auto sent = send_document(document, *peers_[0]); !sent) {
      return std::unexpected(sent.error());
    }
  }
  {
    const MutexLock lock(mutex_);
    documents_[index()] = std::move(text);
  }
  const auto texts = wait_for_documents();
  if (!texts) return std::unexpected(texts.error());
  for (size_t host = 0; leads() && host < count(); ++host) {
    for (const auto& peer : peers_) {
      if (peer->host == host) continue;
      const HostDocument document = {static_cast<uint32_t>(host), (*texts)[host]};
      if (auto sent = send_document(document, *peer); !sent) return std::unexpected(sent.error());
    }
  }
  std::vector<Json> documents;
  for (size_t host = 0; host < count(); ++host) {
    auto parsed = parse_json((*texts)[host]);
    if (!parsed) {
      fail_alike({ErrorKind::kMachineRefused, fmt::format("{} sent what is no document: {}",
                                                          names_[host], parsed.error().message)});
      return failed_or(parsed.error());
    }
    documents.push_back(std::move(*parsed));
  }
  return documents;
}

Result<void> FormedGroup::open_links(size_t bytes_most) {
  const auto offers = gather(link_offer(options_.transport, bytes_most));
  if (!offers) return std::unexpected(offers.error());
  const auto transport = choose_transport(*offers, names_);
  if (!transport) return std::unexpected(transport.error());
  if (peers_.empty() || (*transport)->joins_gpus) {
    listener_.reset();
    return {};
  }
  const MeshPlace place = {.index = index(),
                           .group = nonce_,
                           .addresses = addresses_,
                           .names = names_,
                           .listener = *listener_,
                           .stream = {.secret = options_.secret, .patience = kLinkPatience},
                           .failure = [this] { return failure(); }};
  auto streams = open_mesh(place);
  Result<void> opened;
  if (streams) {
    opened = make_links(std::move(*streams), **transport, bytes_most);
  } else {
    opened = std::unexpected(streams.error());
  }
  if (!opened) {
    fail_alike(opened.error());
    return failed_or(opened.error());
  }
  listener_.reset();
  return {};
}

// Both hosts of a pair are at the same time at it: all hosts go through the pairs in one order.
Result<void> FormedGroup::make_links(std::vector<std::unique_ptr<HostStream>> streams,
                                     const HostTransport& transport, size_t bytes_most) {
  HostLink* beside = nullptr;
  for (size_t host = 0; host < streams.size(); ++host) {
    if (!streams[host]) continue;
    auto link = transport.make(std::move(streams[host]), bytes_most, beside);
    if (!link) {
      return machine_refused("{} has no link with {}: {}", names_[index()], names_[host],
                             link.error().message);
    }
    beside = link->get();
    keep_link(host, std::move(*link));
  }
  return {};
}

void FormedGroup::keep_link(size_t host, std::unique_ptr<HostLink> link) {
  const MutexLock lock(mutex_);
  links_[host] = std::move(link);
  if (failure_) links_[host]->shut_down();
}

Result<void> FormedGroup::bound_commands(size_t bytes_most) {
  if (bytes_most > kCommandBytesMost) {
    return invalid_input(
        "a pass may have {} MiB of page tables and tokens, and hosts send one another at most {}: "
        "use a smaller --sequences, --batch-tokens or --context",
        bytes_most >> 20U, kCommandBytesMost >> 20U);
  }
  command_bytes_most_ = std::max(bytes_most, kFirstCommandBytesMost);
  for (const auto& peer : peers_) {
    peer->reading.take();
    peer->stream->bound_payloads(command_bytes_most_);
    peer->reading.give();
  }
  return {};
}

Result<void> FormedGroup::send_command(std::span<const std::byte> command) {
  CHECK(leads(), "host {} does not lead", index());
  if (command.size() > command_bytes_most_) {
    return invalid_input("a command of {} bytes is beyond {}", command.size(), command_bytes_most_);
  }
  if (const auto failed = failure()) return std::unexpected(*failed);
  command_frame_.clear();
  append_frame(FrameKind::kCommand, command, command_frame_);
  for (const auto& peer : peers_) {
    const auto sent = peer->stream->send(command_frame_);
    if (sent) continue;
    lose_in_sending(*peer, sent.error());
    return failed_or(sent.error());
  }
  return {};
}

Result<std::span<const std::byte>> FormedGroup::next_command() {
  CHECK(!leads(), "the leader has no commands");
  const auto taken = take_command();
  if (!taken) return std::unexpected(taken.error());
  if (!*taken) {
    ThreadTurn& reading = peers_[0]->reading;
    reading.take();
    arm(0, false);
    const auto read = read_command();
    reading.give();
    arm(0, true);
    if (!read) return std::unexpected(read.error());
  }
  return command_;
}

Result<bool> FormedGroup::take_command() {
  bool was_full = false;
  {
    const MutexLock lock(mutex_);
    if (commands_.is_empty()) {
      if (failure_) return std::unexpected(*failure_);
      return false;
    }
    was_full = commands_.is_full();
    commands_.pop(command_);
  }
  if (was_full) arm(0, true);  // reading has stopped there
  return true;
}

// While this thread waits for a command, it reads by itself: no other has to wake it.
Result<void> FormedGroup::read_command() {
  Peer& peer = *peers_[0];
  const auto spin_end = Clock::now() + kSpin;
  while (true) {
    const auto taken = take_command();
    if (!taken) return std::unexpected(taken.error());
    if (*taken) return {};
    const auto frame = peer.stream->receive();
    if (!frame) {
      lose(peer, frame.error());
    } else if (*frame) {
      handle(peer, **frame);
    } else if (Clock::now() < spin_end) {
      _mm_pause();
    } else {
      const milliseconds most = peer.stream->was_busy() ? kRetry : kLongestSleep;
      pollfd entry{.fd = peer.stream->descriptor(), .events = POLLIN, .revents = 0};
      ::poll(&entry, 1, static_cast<int>(most.count()));
    }
  }
}

}  // namespace

Result<std::unique_ptr<HostGroup>> HostGroup::form(const HostOptions& options,
                                                   const std::atomic<bool>& stop) {
  auto formed = form_hosts(options, stop);
  if (!formed) return std::unexpected(formed.error());
  auto group = std::make_unique<FormedGroup>(options, std::move(*formed));
  if (auto started = group->start(); !started) return std::unexpected(started.error());
  spdlog::info("{} of {} hosts: the group is complete.", group->name(group->index()),
               group->count());
  return group;
}

}  // namespace lockstep
