// The mailbox by which serving threads tell the gate's thread: a list, and a descriptor that wakes
// its epoll loop. A notice takes no memory, so that none is lost where there is none: each
// connection has a slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/base/descriptor.h"
#include "engine/base/mutex.h"

namespace lockstep {

// Tells what has come to a connection since the gate has last looked.
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

    void post(Notice::Kind kind) { mailbox_.post(*this, kind); }  // any thread; never throws

   private:
    friend class Mailbox;
    Mailbox& mailbox_;
    // Guarded by the mailbox's mutex: state_of() gives it, to those who hold that.
    struct State {
      Notice notice;  // in the list if of any kind
      Slot* previous = nullptr;
      Slot* next = nullptr;
    };
    State state_;
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
  void post(Slot& slot, Notice::Kind kind) LOCKSTEP_EXCLUDES(mutex_);
  void forget(Slot& slot) LOCKSTEP_EXCLUDES(mutex_);
  Slot::State& state_of(Slot& slot) LOCKSTEP_REQUIRES(mutex_) { return slot.state_; }
  void unlink(Slot& slot) LOCKSTEP_REQUIRES(mutex_);

  Descriptor event_;
  Mutex mutex_;
  Slot* first_ LOCKSTEP_GUARDED_BY(mutex_) = nullptr;
  Slot* last_ LOCKSTEP_GUARDED_BY(mutex_) = nullptr;
  size_t count_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep
