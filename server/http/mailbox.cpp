#include "server/http/mailbox.h"

#include <sys/eventfd.h>

#include <utility>

namespace lockstep {

Mailbox::Slot::Slot(uint64_t connection, Mailbox& mailbox) : mailbox_(mailbox) {
  state_.notice.connection = connection;
}

Mailbox::Slot::~Slot() {
  mailbox_.forget(*this);
}

Mailbox::Mailbox() : event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

void Mailbox::wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the gate is about to wake anyway.
  [[maybe_unused]] const ssize_t written = write(event_.number(), &one, sizeof(one));
}

void Mailbox::post(Slot& slot, Notice::Kind kind) {
  bool was_empty = false;
  {
    const MutexLock lock(mutex_);
    Slot::State& state = state_of(slot);
    if (state.notice.kinds == 0) {
      was_empty = count_++ == 0;
      state.previous = last_;
      (last_ != nullptr ? state_of(*last_).next : first_) = &slot;
      last_ = &slot;
    }
    state.notice.add(kind);
  }
  if (was_empty) wake();
}

void Mailbox::forget(Slot& slot) {
  const MutexLock lock(mutex_);
  if (state_of(slot).notice.kinds != 0) unlink(slot);
}

size_t Mailbox::begin_collecting() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t taken = read(event_.number(), &count, sizeof(count));
  const MutexLock lock(mutex_);
  return count_;
}

std::optional<Notice> Mailbox::next() {
  const MutexLock lock(mutex_);
  if (first_ == nullptr) return std::nullopt;
  Slot& slot = *first_;
  const Notice notice = state_of(slot).notice;
  unlink(slot);
  return notice;
}

void Mailbox::end_collecting() {
  {
    const MutexLock lock(mutex_);
    if (count_ == 0) return;
  }
  wake();
}

void Mailbox::unlink(Slot& slot) {
  Slot::State& state = state_of(slot);
  (state.previous != nullptr ? state_of(*state.previous).next : first_) = state.next;
  (state.next != nullptr ? state_of(*state.next).previous : last_) = state.previous;
  state.previous = state.next = nullptr;
  state.notice.kinds = 0;
  --count_;
}

}  // namespace lockstep
