// What serving threads tell the gate's thread: a list, and a descriptor that wakes its epoll loop.
// A notice takes no memory, so that none is lost where there is none: each connection has a slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "server/http/descriptor.h"

namespace lockstep {

// What a connection has been told since the gate has last looked.
struct Notice {
  enum class Kind {
    kOutput,        // the connection's outbox holds new bytes
    kCut,           // the client takes nothing: close
    kTooSlow,       // more has been made for the client than may wait for it: close
    kBodyReleased,  // the handler has done with the request's body
    kAnswered,      // the handler has returned and the whole answer is in the outbox
    kLastAnswered,  // the same, and the connection ends with it
  };

  uint64_t connection = 0;
  bool holds(Kind kind) const { return (kinds & bit(kind)) != 0; }
  void add(Kind kind) { kinds |= bit(kind); }

  unsigned kinds = 0;  // bits

 private:
  static unsigned bit(Kind kind) { return 1U << static_cast<unsigned>(kind); }
};

class Mailbox {
 public:
  // A connection's place, made and destroyed by the gate's thread. The mailbox outlives it.
  class Slot {
   public:
    Slot(uint64_t connection, Mailbox& mailbox);
    ~Slot();
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;

    void post(Notice::Kind kind);  // any thread; never throws

   private:
    friend class Mailbox;
    Mailbox& mailbox_;
    Notice notice_;  // guarded by the mailbox's mutex, as the two below; in the list if of any kind
    Slot* previous_ = nullptr;
    Slot* next_ = nullptr;
  };

  Mailbox();

  void wake();  // any thread

  // The gate's thread: readable when there is something to collect.
  int descriptor() const { return event_.number(); }
  // How many connections have notices; the descriptor is not readable from here on.
  size_t begin_collecting();
  // The notices of the connection that has waited longest.
  std::optional<Notice> next();
  // Those that have come since begin_collecting() make the descriptor readable.
  void end_collecting();

 private:
  void unlink(Slot& slot);  // mutex_ is held

  Descriptor event_;
  std::mutex mutex_;
  Slot* first_ = nullptr;  // these are guarded by mutex_
  Slot* last_ = nullptr;
  size_t count_ = 0;
};

}  // namespace lockstep
