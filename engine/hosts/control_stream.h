// Frames over a connection between two hosts. Several threads send, one at a time receives: each
// use of the stream below is short, and has the stream to itself.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/base/result.h"
#include "engine/collectives/host_stream.h"
#include "engine/hosts/frames.h"

namespace lockstep {

// Whose turn it is to use something. Unlike a lock it can be tried for, and held for long.
class ThreadTurn {
 public:
  bool try_take();
  void take();  // waits
  void give();

 private:
  Mutex mutex_;
  ConditionVariable given_;
  bool is_taken_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

class ControlStream {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ControlStream(std::unique_ptr<HostStream> stream) : stream_(std::move(stream)) {}

  // Sends whole frames, as append_frame() makes them. Any thread; waits for others that send, and
  // for the other host to take them: at most send_time(). Fails as HostStream::send_within().
  Result<void> send(std::span<const std::byte> frames);
  // The same without waiting: bytes that do not go at once go before all others, by a later call of
  // any of these. False, and nothing is sent: another thread is using the stream, or there are
  // such bytes already.
  Result<bool> try_send(std::span<const std::byte> frames);
  // Sends what try_send() has left, as far as it goes without waiting. Whether nothing is left.
  Result<bool> flush();
  // The longest that so many bytes may take: the stream's patience, and a second for each MiB.
  std::chrono::milliseconds send_time(size_t bytes) const;

  // The next frame, if it has come whole; its payload is valid until the next call. Fails where
  // what comes is no frame, and where the other host has closed the connection.
  Result<std::optional<Frame>> receive();
  // The same; waits for so much time at most.
  Result<std::optional<Frame>> receive_within(std::chrono::milliseconds most);
  // Exchanges the buffer that holds the last frame's payload for another one.
  void swap_payload(std::vector<std::byte>& buffer) { payload_.swap(buffer); }
  // Longer payloads are no frames: before it is known who sends.
  void bound_payloads(size_t bytes_most) { payload_bytes_most_ = bytes_most; }
  // The last receive() could not look for a frame, since another thread was sending.
  bool was_busy() const { return was_busy_; }

  // Any thread: when something was last received, or sent.
  Clock::time_point heard_at() const { return heard_at_.load(std::memory_order_relaxed); }
  Clock::time_point sent_at() const { return sent_at_.load(std::memory_order_relaxed); }
  int descriptor() const { return stream_->descriptor(); }
  const std::string& peer() const { return stream_->peer(); }
  std::string local_address() const { return stream_->local_address(); }
  void shut_down() noexcept { stream_->shut_down(); }

  // The connection itself, after the last frame that was received. Nothing else is called then.
  std::unique_ptr<HostStream> release() { return std::move(stream_); }

 private:
  // With the turn taken.
  Result<bool> send_left();

  // Fills `part` from `filled` on; whether it is full.
  Result<bool> fill(std::span<std::byte> part, size_t& filled);

  std::unique_ptr<HostStream> stream_;
  ThreadTurn turn_;                                         // to use the stream
  std::vector<std::byte> left_;                             // of try_send(); whose turn it is
  std::atomic<Clock::time_point> heard_at_ = Clock::now();  // pairs with nothing
  std::atomic<Clock::time_point> sent_at_ = Clock::now();   // pairs with nothing

  // The receiver's.
  std::array<std::byte, kFrameHeadBytes> head_ = {};
  size_t head_filled_ = 0;
  std::optional<FrameHead> decoded_;
  size_t payload_bytes_most_ = kFirstCommandBytesMost;
  std::vector<std::byte> payload_;
  size_t payload_filled_ = 0;
  bool was_busy_ = false;
};

}  // namespace lockstep
