// What serving threads tell the gate's thread: a list, and a descriptor that wakes its epoll loop.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "server/http/descriptor.h"

namespace lockstep {

struct Notice {
  enum class Kind {
    kOutput,        // the connection's outbox holds new bytes
    kCut,           // the client takes nothing: close
    kBodyReleased,  // the handler has done with the request's body
    kAnswered,      // the handler has returned and the whole answer is in the outbox
  };
  uint64_t connection = 0;
  Kind kind = Kind::kOutput;
  bool keep_alive = false;  // for kAnswered
  size_t kept_bytes = 0;    // for kBodyReleased
};

class Mailbox {
 public:
  Mailbox();

  // Any thread.
  void post(Notice notice);
  void wake();

  // The gate's thread: readable when there is something to collect.
  int descriptor() const { return event_.number(); }
  std::vector<Notice> collect();

 private:
  Descriptor event_;
  std::mutex mutex_;
  std::vector<Notice> notices_;  // guarded by mutex_
};

}  // namespace lockstep
