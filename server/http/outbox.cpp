#include "server/http/outbox.h"

#include <utility>

namespace lockstep {
namespace {

// What an empty buffer keeps for the connection's next answer.
constexpr size_t kKeptBytes = 64 * 1024;

void empty(std::string& buffer) {
  if (buffer.capacity() > kKeptBytes) {
    buffer = {};
  } else {
    buffer.clear();
  }
}

}  // namespace

bool Outbox::write(std::string_view bytes) {
  std::unique_lock lock(mutex_);
  const auto may_go_on = [&] {
    return client_gone() || owed_bytes_ == 0 || owed_bytes_ + bytes.size() <= limits_.unsent_bytes;
  };
  if (!room_.wait_for(lock, limits_.write_deadline, may_go_on)) {
    state_.store(State::kClosed, std::memory_order_release);
    lock.unlock();
    mailbox_.post({connection_, Notice::Kind::kCut});
    return false;
  }
  if (client_gone()) return false;
  put(lock, bytes);
  return true;
}

void Outbox::append(std::string_view bytes) {
  std::unique_lock lock(mutex_);
  if (!is_closed()) put(lock, bytes);
}

void Outbox::tell_body_released(size_t kept_bytes) {
  mailbox_.post({connection_, Notice::Kind::kBodyReleased, false, kept_bytes});
}

size_t Outbox::owed_bytes() {
  const std::lock_guard lock(mutex_);
  return owed_bytes_;
}

void Outbox::put(std::unique_lock<std::mutex>& lock, std::string_view bytes) {
  pending_ += bytes;
  owed_bytes_ += bytes.size();
  held_by_all_ += bytes.size();
  if (std::exchange(is_announced_, true)) return;
  lock.unlock();
  mailbox_.post({connection_, Notice::Kind::kOutput});
}

void Outbox::on_client_gone(std::function<void()> callback) {
  const std::lock_guard lock(callback_mutex_);
  if (!callback) {
    callback_ = nullptr;
  } else if (client_gone()) {
    callback();
  } else {
    callback_ = std::move(callback);
  }
}

Outbox::Flush Outbox::flush(Transport& transport, bool& progressed) {
  for (;;) {
    if (sent_bytes_ == sending_.size()) {
      held_by_all_ -= std::exchange(sent_bytes_, 0);
      empty(sending_);
      const std::lock_guard lock(mutex_);
      is_announced_ = false;
      if (pending_.empty()) return Flush::kDrained;
      std::swap(sending_, pending_);
    }
    const Transport::Outcome sent =
        transport.send(sending_.data() + sent_bytes_, sending_.size() - sent_bytes_);
    if (sent.status == Transport::Status::kBlocked) return Flush::kBlocked;
    if (sent.status != Transport::Status::kDone) return Flush::kFailed;
    progressed = true;
    sent_bytes_ += sent.bytes;
    const std::lock_guard lock(mutex_);
    owed_bytes_ -= sent.bytes;
    room_.notify_all();
  }
}

void Outbox::half_close() {
  {
    const std::lock_guard lock(mutex_);
    if (state_.load(std::memory_order_acquire) == State::kOpen) {
      state_.store(State::kHalfClosed, std::memory_order_release);
    }
    room_.notify_all();
  }
  run_callback();
}

void Outbox::close() {
  {
    const std::lock_guard lock(mutex_);
    state_.store(State::kClosed, std::memory_order_release);
    room_.notify_all();
  }
  forget();
  run_callback();
}

// After this nothing is put in any more.
void Outbox::forget() {
  const std::lock_guard lock(mutex_);
  held_by_all_ -= pending_.size() + sending_.size();
  pending_ = {};
  sending_ = {};
  sent_bytes_ = 0;
  owed_bytes_ = 0;
}

void Outbox::run_callback() {
  const std::lock_guard lock(callback_mutex_);
  if (callback_) std::exchange(callback_, nullptr)();
}

}  // namespace lockstep
