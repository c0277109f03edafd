#include "engine/hosts/control_stream.h"

#include <poll.h>

#include <algorithm>

namespace lockstep {

bool ThreadTurn::try_take() {
  const MutexLock lock(mutex_);
  if (is_taken_) return false;
  is_taken_ = true;
  return true;
}

void ThreadTurn::take() {
  const MutexLock lock(mutex_);
  while (is_taken_) given_.wait(mutex_);
  is_taken_ = true;
}

void ThreadTurn::give() {
  {
    const MutexLock lock(mutex_);
    is_taken_ = false;
  }
  given_.notify_one();
}

std::chrono::milliseconds ControlStream::send_time(size_t bytes) const {
  constexpr size_t kBytesPerSecond = size_t{1} << 20U;  // slower networks are of no use
  return stream_->patience() + std::chrono::milliseconds(bytes * 1000 / kBytesPerSecond);
}

Result<void> ControlStream::send(std::span<const std::byte> frames) {
  turn_.take();
  const auto most = send_time(left_.size() + frames.size());
  const auto deadline = Clock::now() + most;
  auto sent = left_.empty() ? Result<void>() : stream_->send_within(left_, most);
  if (sent) {
    left_.clear();
    const auto rest = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    sent = stream_->send_within(frames, std::max(rest, std::chrono::milliseconds(1)));
  }
  turn_.give();
  sent_at_.store(Clock::now(), std::memory_order_relaxed);
  return sent;
}

Result<bool> ControlStream::try_send(std::span<const std::byte> frames) {
  if (!turn_.try_take()) return false;
  auto may_send = send_left();
  if (may_send && *may_send) {
    const auto sent = stream_->send_some(frames);
    if (sent) {
      const auto rest = frames.subspan(*sent);
      left_.assign(rest.begin(), rest.end());
      sent_at_.store(Clock::now(), std::memory_order_relaxed);
    } else {
      may_send = std::unexpected(sent.error());
    }
  }
  turn_.give();
  return may_send;
}

Result<bool> ControlStream::flush() {
  if (!turn_.try_take()) return false;
  auto flushed = send_left();
  turn_.give();
  return flushed;
}

Result<bool> ControlStream::send_left() {
  const auto sent = stream_->send_some(left_);
  if (!sent) return std::unexpected(sent.error());
  left_.erase(left_.begin(), left_.begin() + static_cast<std::ptrdiff_t>(*sent));
  return left_.empty();
}

Result<bool> ControlStream::fill(std::span<std::byte> part, size_t& filled) {
  while (filled < part.size()) {
    was_busy_ = !turn_.try_take();
    if (was_busy_) return false;
    const auto received = stream_->receive_some(part.subspan(filled));
    turn_.give();
    if (!received) return std::unexpected(received.error());
    if (*received == 0) return false;
    filled += *received;
    heard_at_.store(Clock::now(), std::memory_order_relaxed);
  }
  return true;
}

Result<std::optional<Frame>> ControlStream::receive() {
  if (!decoded_) {
    const auto is_whole = fill(head_, head_filled_);
    if (!is_whole) return std::unexpected(is_whole.error());
    if (!*is_whole) return std::nullopt;
    const auto head = decode_head(head_);
    if (!head) return std::unexpected(head.error());
    if (head->payload_bytes > payload_bytes_most_) {
      return invalid_input("a frame of {} bytes came where at most {} are expected",
                           head->payload_bytes, payload_bytes_most_);
    }
    decoded_ = *head;
    payload_.resize(head->payload_bytes);
    payload_filled_ = 0;
  }
  const auto is_whole = fill(payload_, payload_filled_);
  if (!is_whole) return std::unexpected(is_whole.error());
  if (!*is_whole) return std::nullopt;
  const FrameKind kind = decoded_->kind;
  decoded_.reset();
  head_filled_ = 0;
  return Frame{kind, payload_};
}

Result<std::optional<Frame>> ControlStream::receive_within(std::chrono::milliseconds most) {
  const auto deadline = Clock::now() + most;
  while (true) {
    auto frame = receive();
    if (!frame || *frame) return frame;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return std::nullopt;
    pollfd entry{.fd = descriptor(), .events = POLLIN, .revents = 0};
    // The stream may hold what is read already, if it was busy.
    ::poll(&entry, 1, was_busy_ ? 1 : static_cast<int>(left.count()));
  }
}

}  // namespace lockstep
