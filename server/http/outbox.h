// The bytes that one connection owes its client: a serving thread puts them in, the gate's thread
// sends them. Knows whether the client is still there.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "engine/base/mutex.h"
#include "server/http/answer_memory.h"
#include "server/http/http_limits.h"
#include "server/http/mailbox.h"
#include "server/http/transport.h"

namespace lockstep {

class Outbox {
 public:
  enum class Flush {
    kDrained,
    kBlocked,  // the socket takes no more, or this has had its turn
    kFailed,
  };

  Outbox(uint64_t connection, const HttpLimits& limits, Mailbox& mailbox, AnswerMemory& memory)
      : slot_(connection, mailbox), limits_(limits), memory_(memory) {}
  ~Outbox() { forget(); }

  // Serving thread. A part of a streamed answer: waits while the client owes so much that
  // limits.unsent_bytes would be passed, until limits.write_deadline; then the client is cut. False
  // if it has gone.
  bool write(std::string_view bytes);
  // Any thread. A whole answer, at once; dropped if the connection is closed. Where there is no
  // memory for it std::bad_alloc is thrown, and nothing is added.
  void append(std::string_view bytes);
  // Any thread. Frees the memory of a text that the connection has been given or has sent.
  void free_text(std::string text) noexcept;
  // Serving thread. To the gate, which counts the bytes of bodies: so many of the request's are
  // kept until it is answered.
  void tell_body_released(size_t kept_bytes);
  // The gate's thread, once it has been told.
  size_t kept_body_bytes() const { return kept_body_bytes_.load(std::memory_order_relaxed); }
  // Any thread. The last that is sent, behind all the rest; takes no memory. The bytes outlive
  // this.
  void append_last(std::string_view lasting_bytes);
  // Any thread: to the gate's.
  void post(Notice::Kind kind) { slot_.post(kind); }
  // Any thread. The client is cut: for a stream of which more is made than may wait for it.
  void cut_too_slow();
  // The bytes that the client has not taken yet.
  size_t owed_bytes() const;
  bool client_gone() const { return state_.load(std::memory_order_acquire) != State::kOpen; }
  bool is_closed() const { return state_.load(std::memory_order_acquire) == State::kClosed; }
  // As HttpResponse has it. An empty one takes back: after that none runs or begins to.
  void on_client_gone(std::function<void()> callback);

  // The gate's thread. Sends what the transport takes; `progressed` tells if that was anything.
  Flush flush(Transport& transport, bool& progressed);
  // The client will send nothing more, which a client that has left does as well: streams end, but
  // whole answers are still sent.
  void half_close();
  void close();

 private:
  enum class State { kOpen, kHalfClosed, kClosed };

  Flush flush_last(Transport& transport, bool& progressed);
  // True if the gate must be told, once the lock is free.
  bool put(std::string_view bytes) LOCKSTEP_REQUIRES(mutex_);
  void empty(std::string& buffer);
  void forget() LOCKSTEP_EXCLUDES(mutex_);
  void run_callback() LOCKSTEP_EXCLUDES(mutex_, callback_mutex_);

  Mailbox::Slot slot_;
  const HttpLimits& limits_;
  AnswerMemory& memory_;

  std::atomic<size_t> kept_body_bytes_ = 0;  // of the request that is being served
  std::atomic<State> state_ = State::kOpen;  // stored under mutex_, read by any thread

  mutable Mutex mutex_;
  ConditionVariable room_;
  std::string pending_ LOCKSTEP_GUARDED_BY(mutex_);
  std::string_view last_ LOCKSTEP_GUARDED_BY(mutex_);  // what append_last() has left to be sent
  size_t owed_bytes_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // pending_, last_, what is left of sending_
  bool is_announced_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // the gate has been told of pending_

  std::string sending_;    // the gate's thread only
  size_t sent_bytes_ = 0;  // of sending_

  Mutex callback_mutex_;  // held while the callback runs
  std::function<void()> callback_ LOCKSTEP_GUARDED_BY(callback_mutex_);
};

}  // namespace lockstep
