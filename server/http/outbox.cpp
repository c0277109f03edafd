#include "server/http/outbox.h"

#include <exception>
#include <utility>

#include "engine/base/log.h"

namespace lockstep {
namespace {

// The bytes that an empty buffer keeps for the connection's next answer.
constexpr size_t kKeptBytes = 64 * 1024;
// After so many the gate's other connections have their turn, however fast this client takes them.
constexpr size_t kBytesPerTurn = 512 * 1024;

}  // namespace

bool Outbox::write(std::string_view bytes) {
  const auto deadline = ConditionVariable::deadline_in(limits_.write_deadline);
  MutexLock lock(mutex_);
  const auto may_go_on = [&]() LOCKSTEP_REQUIRES(mutex_) {
    return client_gone() || owed_bytes_ == 0 || owed_bytes_ + bytes.size() <= limits_.unsent_bytes;
  };
  while (!may_go_on() && room_.wait_until(mutex_, deadline)) {
  }
  if (!may_go_on()) {
    state_.store(State::kClosed, std::memory_order_release);
    lock.unlock();
    slot_.post(Notice::Kind::kCut);
    return false;
  }
  if (client_gone()) return false;
  const bool is_news = put(bytes);
  lock.unlock();
  if (is_news) slot_.post(Notice::Kind::kOutput);
  return true;
}

void Outbox::append(std::string_view bytes) {
  bool is_news = false;
  {
    const MutexLock lock(mutex_);
    if (!is_closed()) is_news = put(bytes);
  }
  if (is_news) slot_.post(Notice::Kind::kOutput);
}

void Outbox::tell_body_released(size_t kept_bytes) {
  kept_body_bytes_.store(kept_bytes,
                         std::memory_order_relaxed);  // posting takes the mailbox's lock
  slot_.post(Notice::Kind::kBodyReleased);
}

void Outbox::append_last(std::string_view lasting_bytes) {
  {
    const MutexLock lock(mutex_);
    if (is_closed()) return;
    last_ = lasting_bytes;
    owed_bytes_ += last_.size();
  }
  slot_.post(Notice::Kind::kOutput);
}

void Outbox::cut_too_slow() {
  {
    const MutexLock lock(mutex_);
    state_.store(State::kClosed, std::memory_order_release);
    room_.notify_all();
  }
  slot_.post(Notice::Kind::kTooSlow);
}

size_t Outbox::owed_bytes() const {
  const MutexLock lock(mutex_);
  return owed_bytes_;
}

bool Outbox::put(std::string_view bytes) {
  pending_ += bytes;
  owed_bytes_ += bytes.size();
  memory_.add(bytes.size());
  return !std::exchange(is_announced_, true);
}

void Outbox::on_client_gone(std::function<void()> callback) {
  const MutexLock lock(callback_mutex_);
  if (!callback) {
    callback_ = nullptr;
  } else if (client_gone()) {
    callback();
  } else {
    callback_ = std::move(callback);
  }
}

Outbox::Flush Outbox::flush(Transport& transport, bool& progressed) {
  for (size_t sent_in_turn = 0;;) {
    if (sent_bytes_ == sending_.size()) {
      memory_.remove(std::exchange(sent_bytes_, 0));
      empty(sending_);
      const MutexLock lock(mutex_);
      is_announced_ = false;
      if (pending_.empty()) break;
      std::swap(sending_, pending_);
    }
    if (sent_in_turn >= kBytesPerTurn) return Flush::kBlocked;
    const Transport::Outcome sent =
        transport.send(sending_.data() + sent_bytes_, sending_.size() - sent_bytes_);
    if (sent.status == Transport::Status::kBlocked) return Flush::kBlocked;
    if (sent.status != Transport::Status::kDone) return Flush::kFailed;
    progressed = true;
    sent_bytes_ += sent.bytes;
    sent_in_turn += sent.bytes;
    const MutexLock lock(mutex_);
    owed_bytes_ -= sent.bytes;
    room_.notify_all();
  }
  return flush_last(transport, progressed);
}

Outbox::Flush Outbox::flush_last(Transport& transport, bool& progressed) {
  const MutexLock lock(mutex_);
  while (!last_.empty()) {
    const Transport::Outcome sent = transport.send(last_.data(), last_.size());
    if (sent.status == Transport::Status::kBlocked) return Flush::kBlocked;
    if (sent.status != Transport::Status::kDone) return Flush::kFailed;
    progressed = true;
    last_.remove_prefix(sent.bytes);
    owed_bytes_ -= sent.bytes;
  }
  return Flush::kDrained;
}

void Outbox::half_close() {
  {
    const MutexLock lock(mutex_);
    if (state_.load(std::memory_order_acquire) == State::kOpen) {
      state_.store(State::kHalfClosed, std::memory_order_release);
    }
    room_.notify_all();
  }
  run_callback();
}

void Outbox::close() {
  {
    const MutexLock lock(mutex_);
    state_.store(State::kClosed, std::memory_order_release);
    room_.notify_all();
  }
  forget();
  run_callback();
}

void Outbox::empty(std::string& buffer) {
  if (buffer.capacity() > kKeptBytes) {
    free_text(std::move(buffer));
  } else {
    buffer.clear();
  }
}

void Outbox::free_text(std::string text) noexcept {
  const size_t bytes = text.capacity();
  std::string().swap(text);  // to assign an empty one would keep the memory
  memory_.note_freed(bytes);
}

// After this nothing is put in any more.
void Outbox::forget() {
  const MutexLock lock(mutex_);
  memory_.remove(pending_.size() + sending_.size());
  empty(pending_);
  empty(sending_);
  last_ = {};
  sent_bytes_ = 0;
  owed_bytes_ = 0;
}

// An exception of the callback, for want of memory say, costs its own request alone.
void Outbox::run_callback() {
  const MutexLock lock(callback_mutex_);
  if (!callback_) return;
  try {
    std::exchange(callback_, nullptr)();
  } catch (const std::exception& error) {
    spdlog::error("A request was not told that its client has gone: {}", error.what());
  }
}

}  // namespace lockstep
