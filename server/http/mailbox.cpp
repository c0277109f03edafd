#include "server/http/mailbox.h"

#include <sys/eventfd.h>

#include <utility>

namespace lockstep {

Mailbox::Mailbox() : event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

void Mailbox::post(Notice notice) {
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    was_empty = notices_.empty();
    notices_.push_back(notice);
  }
  if (was_empty) wake();
}

void Mailbox::wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the gate is about to wake anyway.
  [[maybe_unused]] const ssize_t written = write(event_.number(), &one, sizeof(one));
}

std::vector<Notice> Mailbox::collect() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t taken = read(event_.number(), &count, sizeof(count));
  const std::lock_guard lock(mutex_);
  return std::exchange(notices_, {});
}

}  // namespace lockstep
