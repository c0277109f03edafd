#include "server/http/mailbox.h"

#include <sys/eventfd.h>

#include <utility>

namespace lockstep {

Mailbox::Slot::Slot(uint64_t connection, Mailbox& mailbox) : mailbox_(mailbox) {
  notice_.connection = connection;
}

Mailbox::Slot::~Slot() {
  const std::lock_guard lock(mailbox_.mutex_);
  if (notice_.kinds != 0) mailbox_.unlink(*this);
}

void Mailbox::Slot::post(Notice::Kind kind) {
  bool was_empty = false;
  {
    const std::lock_guard lock(mailbox_.mutex_);
    if (notice_.kinds == 0) {
      was_empty = mailbox_.count_++ == 0;
      previous_ = mailbox_.last_;
      (previous_ != nullptr ? previous_->next_ : mailbox_.first_) = this;
      mailbox_.last_ = this;
    }
    notice_.add(kind);
  }
  if (was_empty) mailbox_.wake();
}

Mailbox::Mailbox() : event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

void Mailbox::wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the gate is about to wake anyway.
  [[maybe_unused]] const ssize_t written = write(event_.number(), &one, sizeof(one));
}

size_t Mailbox::begin_collecting() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t taken = read(event_.number(), &count, sizeof(count));
  const std::lock_guard lock(mutex_);
  return count_;
}

std::optional<Notice> Mailbox::next() {
  const std::lock_guard lock(mutex_);
  if (first_ == nullptr) return std::nullopt;
  Slot& slot = *first_;
  const Notice notice = slot.notice_;
  unlink(slot);
  return notice;
}

void Mailbox::end_collecting() {
  {
    const std::lock_guard lock(mutex_);
    if (count_ == 0) return;
  }
  wake();
}

void Mailbox::unlink(Slot& slot) {
  (slot.previous_ != nullptr ? slot.previous_->next_ : first_) = slot.next_;
  (slot.next_ != nullptr ? slot.next_->previous_ : last_) = slot.previous_;
  slot.previous_ = slot.next_ = nullptr;
  slot.notice_.kinds = 0;
  --count_;
}

}  // namespace lockstep
