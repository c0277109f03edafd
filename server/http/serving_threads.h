// Threads that run handlers, one whole request each. They are started as requests come and end when
// none has come for a while. Requests that may have none yet wait, and clients take turns: who gets
// a thread, and when, is ThreadShares'.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/mutex.h"
#include "server/http/answer_memory.h"
#include "server/http/exchange.h"
#include "server/http/thread_shares.h"
#include "server/http/turns.h"

namespace lockstep {

struct AdmittedRequest {
  std::string client;     // whose turn it is: a key's name or a network
  std::string site = {};  // as ThreadShares has it
  std::unique_ptr<Exchange> exchange;
};

class ServingThreads {
 public:
  // Both outlive it. Threads give back, between requests, the memory that answers have left.
  ServingThreads(const HttpOptions& options, AnswerMemory& answer_memory)
      : options_(options), answer_memory_(answer_memory) {}
  ~ServingThreads() { stop(); }

  // `kept` threads are there from now until stop(); up to `most` in all.
  void start(size_t kept, size_t most);
  // Other numbers from here on; threads above `most` end with the request that they serve. Any
  // thread.
  void set_counts(size_t kept, size_t most);
  // The gate bounds what waits: each connection has one request at most. Throws std::bad_alloc, and
  // then the request is not taken.
  void submit(AdmittedRequest request);
  // Drops what waits and returns when all handlers have returned.
  void stop();

 private:
  using Threads = std::list<std::thread>;
  struct Resting {
    ConditionVariable wake;
    bool is_woken = false;  // guarded by mutex_ of the ServingThreads
  };

  void find_thread() LOCKSTEP_REQUIRES(mutex_);
  void end_request(const std::string& client) LOCKSTEP_EXCLUDES(mutex_);
  void take_counts(size_t kept, size_t most) LOCKSTEP_REQUIRES(mutex_);
  void add_thread() LOCKSTEP_REQUIRES(mutex_);
  bool try_add_thread() LOCKSTEP_REQUIRES(mutex_);
  void run(Threads::iterator self, HttplibWriter& writer);
  bool take(AdmittedRequest& request, Threads::iterator self) LOCKSTEP_EXCLUDES(mutex_);
  void wake_one() LOCKSTEP_REQUIRES(mutex_);
  bool rest() LOCKSTEP_REQUIRES(mutex_);

  const HttpOptions& options_;
  AnswerMemory& answer_memory_;

  Mutex mutex_;
  size_t kept_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  size_t most_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // as shares_ has it
  Threads threads_ LOCKSTEP_GUARDED_BY(mutex_);
  Threads ended_ LOCKSTEP_GUARDED_BY(mutex_);  // to be joined
  // The one that rests the shortest is woken first.
  std::vector<Resting*> resting_ LOCKSTEP_GUARDED_BY(mutex_);
  Turns<AdmittedRequest> waiting_ LOCKSTEP_GUARDED_BY(mutex_);
  ThreadShares shares_ LOCKSTEP_GUARDED_BY(mutex_);
  bool is_stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep
