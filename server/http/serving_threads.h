// A fixed number of threads that run handlers, one whole request each, in the order of admission.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "server/http/exchange.h"
#include "server/http/mailbox.h"

namespace lockstep {

struct AdmittedRequest {
  uint64_t connection = 0;
  std::unique_ptr<Exchange> exchange;
};

class ServingThreads {
 public:
  // `options` and `mailbox` outlive it.
  ServingThreads(const HttpOptions& options, Mailbox& mailbox)
      : options_(options), mailbox_(mailbox) {}
  ~ServingThreads() { stop(); }

  void start(size_t count);
  // The gate bounds the queue: each connection has one request at most.
  void submit(AdmittedRequest request);
  // Drops what waits and returns when all handlers have returned.
  void stop();

 private:
  void run();
  bool take(AdmittedRequest& request);

  const HttpOptions& options_;
  Mailbox& mailbox_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<AdmittedRequest> queue_;  // guarded by mutex_
  bool is_stopping_ = false;           // guarded by mutex_
};

}  // namespace lockstep
