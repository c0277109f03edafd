#include "engine/hosts/peer.h"

#include <poll.h>

#include <thread>
#include <utility>

namespace lockstep {

bool Peer::is_silent(std::chrono::milliseconds patience) {
  constexpr int kSilentLooks = 2;  // before it counts as such
  // Bytes that have come and were not read yet are no silence: something has kept this host.
  pollfd entry{.fd = stream->descriptor(), .events = POLLIN, .revents = 0};
  const bool has_more = ::poll(&entry, 1, 0) > 0;
  const auto since = ControlStream::Clock::now() - stream->heard_at();
  silent_looks = !has_more && since > patience ? silent_looks + 1 : 0;
  return silent_looks >= kSilentLooks;
}

void FailureCall::set(Call call) {
  std::optional<Error> reason;
  {
    const MutexLock lock(mutex_);
    if (!reason_) {
      call_ = std::move(call);
      return;
    }
    reason = reason_;
  }
  call(*reason);
}

void FailureCall::tell(const Error& reason) {
  Call call;
  {
    const MutexLock lock(mutex_);
    reason_ = reason;
    call = std::exchange(call_, {});
  }
  if (call) call(reason);
}

void say_last(ControlStream& stream, std::span<const std::byte> words,
              ControlStream::Clock::time_point until) {
  constexpr std::chrono::milliseconds kBetweenTries{1};
  bool is_sent = false;
  while (true) {
    const auto done = is_sent ? stream.flush() : stream.try_send(words);
    if (!done || (is_sent && *done)) return;
    if (*done) {
      is_sent = true;
      continue;
    }
    if (ControlStream::Clock::now() > until) return;
    std::this_thread::sleep_for(kBetweenTries);
  }
}

}  // namespace lockstep
