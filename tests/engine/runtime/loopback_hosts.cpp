#include "tests/engine/runtime/loopback_hosts.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <random>

#include "engine/base/mutex.h"
#include "tests/engine/collectives/connected_hosts.h"

namespace lockstep {

struct LoopbackHosts::Queue {
  Mutex mutex;
  ConditionVariable changed;
  std::deque<std::byte> bytes LOCKSTEP_GUARDED_BY(mutex);
  size_t sent LOCKSTEP_GUARDED_BY(mutex) = 0;
  bool is_cut LOCKSTEP_GUARDED_BY(mutex) = false;
  size_t words LOCKSTEP_GUARDED_BY(mutex) = 0;  // that a pass has ended
  bool loses_pieces LOCKSTEP_GUARDED_BY(mutex) = false;
  size_t bytes_most LOCKSTEP_GUARDED_BY(mutex) = SIZE_MAX;

  bool is_full() LOCKSTEP_REQUIRES(mutex) { return sent >= bytes_most; }
};

// Both ways of exchanging among several hosts are taken.
constexpr size_t kBuffered = 1024;
// A piece is now and then nothing, and often less than a block of rows.
constexpr size_t kPieceBytesMost = 5000;

class LoopbackHosts::Link final : public HostLink, private BytePieces {
 public:
  Link(Queue& out, Queue& in, std::chrono::milliseconds patience)
      : out_(out), in_(in), patience_(patience) {}

  Result<void> exchange(std::span<const std::byte> out, std::span<std::byte> in) override {
    {
      const MutexLock lock(out_.mutex);
      out_.bytes.insert(out_.bytes.end(), out.begin(), out.end());
      out_.sent += out.size();
      out_.changed.notify_all();
      if (out_.is_full()) return cut(out_);
    }
    const MutexLock lock(in_.mutex);
    while (in_.bytes.size() < in.size() && !in_.is_cut) in_.changed.wait(in_.mutex);
    if (in_.is_cut) return machine_refused("the link is cut");
    const auto end = in_.bytes.begin() + static_cast<std::ptrdiff_t>(in.size());
    std::copy(in_.bytes.begin(), end, in.begin());
    in_.bytes.erase(in_.bytes.begin(), end);
    return {};
  }
  void shut_down() noexcept override {
    for (Queue* queue : {&out_, &in_}) {
      const MutexLock lock(queue->mutex);
      queue->is_cut = true;
      queue->changed.notify_all();
    }
  }
  bool buffers(size_t bytes) const override { return bytes <= kBuffered; }
  BytePieces& pieces() override { return *this; }
  Result<size_t> send_some(std::span<const std::byte> out) override {
    const MutexLock lock(out_.mutex);
    if (out_.is_cut) return machine_refused("the link is cut");
    const size_t bytes = piece(out.size());
    const auto end = out.begin() + static_cast<ptrdiff_t>(bytes);
    if (!out_.loses_pieces) out_.bytes.insert(out_.bytes.end(), out.begin(), end);
    out_.sent += bytes;
    out_.changed.notify_all();
    if (out_.is_full()) return cut(out_);
    return bytes;
  }
  Result<size_t> receive_some(std::span<std::byte> in) override {
    const MutexLock lock(in_.mutex);
    if (in_.is_cut) return machine_refused("the link is cut");
    const size_t bytes = piece(std::min(in.size(), in_.bytes.size()));
    const auto end = in_.bytes.begin() + static_cast<ptrdiff_t>(bytes);
    std::copy(in_.bytes.begin(), end, in.begin());
    in_.bytes.erase(in_.bytes.begin(), end);
    return bytes;
  }
  // As links that send messages do.
  Result<bool> settle() override {
    if (!has_said_) {
      const MutexLock lock(out_.mutex);
      if (!out_.loses_pieces) ++out_.words;
      has_said_ = true;
    }
    const MutexLock lock(in_.mutex);
    if (in_.is_cut) return machine_refused("the link is cut");
    if (in_.words == 0) return false;
    --in_.words;
    has_said_ = false;
    return true;
  }
  std::chrono::milliseconds patience() const override { return patience_; }
  std::string_view transport() const override { return "memory"; }

 private:
  // Any part of so many bytes, none as well: one thread at a time calls this end.
  size_t piece(size_t bytes) { return std::min<size_t>(bytes, random_() % kPieceBytesMost); }

  static std::unexpected<Error> cut(Queue& queue) LOCKSTEP_REQUIRES(queue.mutex) {
    queue.is_cut = true;
    return machine_refused("the link is cut");
  }

  Queue& out_;
  Queue& in_;
  const std::chrono::milliseconds patience_;
  std::minstd_rand random_{1};
  bool has_said_ = false;
};

class LoopbackHosts::Group final : public HostGroup {
 public:
  Group(size_t index, std::vector<std::unique_ptr<HostLink>> links)
      : index_(index), links_(std::move(links)) {}

  size_t count() const override { return links_.size(); }
  size_t index() const override { return index_; }
  const std::string& name(size_t) const override { return name_; }
  Result<std::vector<nlohmann::ordered_json>> gather(const nlohmann::ordered_json& own) override {
    return std::vector<nlohmann::ordered_json>(count(), own);
  }
  Result<void> open_links(size_t) override { return {}; }
  HostLink& link(size_t host) override { return *links_[host]; }
  Result<void> bound_commands(size_t) override { return {}; }
  Result<void> send_command(std::span<const std::byte>) override { return {}; }
  Result<std::span<const std::byte>> next_command() override { return unavailable("none come"); }
  void fail(const Error& reason) noexcept override {
    if (!failure_) failure_ = reason;
    for (const auto& link : links_) {
      if (link != nullptr) link->shut_down();
    }
  }
  std::optional<Error> failure() const override { return failure_; }
  void on_failure(std::function<void(const Error&)>) override {}

 private:
  size_t index_;
  std::string name_ = "a host of the test";
  std::vector<std::unique_ptr<HostLink>> links_;  // null: to itself
  std::optional<Error> failure_;
};

LoopbackHosts::LoopbackHosts(size_t count, std::chrono::milliseconds patience) {
  for (size_t index = 0; index < count * count; ++index) {
    queues_.push_back(std::make_unique<Queue>());
  }
  for (size_t host = 0; host < count; ++host) {
    std::vector<std::unique_ptr<HostLink>> links(count);
    for (size_t other = 0; other < count; ++other) {
      if (other == host) continue;
      links[other] = std::make_unique<Link>(*queues_[host * count + other],
                                            *queues_[other * count + host], patience);
    }
    groups_.push_back(std::make_unique<Group>(host, std::move(links)));
  }
}

LoopbackHosts::LoopbackHosts(size_t count, const HostTransport& transport) {
  std::vector<std::vector<std::unique_ptr<HostLink>>> links(count);
  for (auto& of_host : links) of_host.resize(count);
  std::vector<HostLink*> beside(count);  // the last one made for each host
  const auto make = [&](size_t host, size_t other, std::unique_ptr<HostStream> stream) {
    auto made = transport.make(std::move(stream), size_t{1} << 20U, beside[host]);
    CHECK(made.has_value(), "hosts {} and {} have no link", host, other);
    links[host][other] = std::move(*made);
    beside[host] = links[host][other].get();
    return true;
  };
  for (size_t host = 0; host < count; ++host) {
    for (size_t other = host + 1; other < count; ++other) {
      ConnectedHosts streams = connect_hosts(host_options(false), host_options(false));
      both_at_once([&] { return make(host, other, std::move(streams.accepted)); },
                   [&] { return make(other, host, std::move(streams.connected)); });
    }
  }
  for (size_t host = 0; host < count; ++host) {
    groups_.push_back(std::make_unique<Group>(host, std::move(links[host])));
  }
}

LoopbackHosts::~LoopbackHosts() = default;

HostGroup& LoopbackHosts::group(size_t host) {
  return *groups_[host];
}

size_t LoopbackHosts::sent_bytes(size_t host) const {
  const size_t count = groups_.size();
  size_t sent = 0;
  for (size_t other = 0; other < count; ++other) {
    Queue& queue = *queues_[host * count + other];
    const MutexLock lock(queue.mutex);
    sent += queue.sent;
  }
  return sent;
}

void LoopbackHosts::cut_behind(size_t host, size_t bytes) {
  for (size_t other = 0; other < groups_.size(); ++other) {
    Queue& queue = *queues_[host * groups_.size() + other];
    const MutexLock lock(queue.mutex);
    queue.bytes_most = bytes;
  }
}

void LoopbackHosts::lose_pieces(size_t host) {
  for (size_t other = 0; other < groups_.size(); ++other) {
    Queue& queue = *queues_[host * groups_.size() + other];
    const MutexLock lock(queue.mutex);
    queue.loses_pieces = true;
  }
}

void LoopbackHosts::cut() {
  for (const auto& queue : queues_) {
    const MutexLock lock(queue->mutex);
    queue->is_cut = true;
    queue->changed.notify_all();
  }
}

}  // namespace lockstep
