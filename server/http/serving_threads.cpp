#include "server/http/serving_threads.h"

#include <pthread.h>

#include <utility>

namespace lockstep {

void ServingThreads::start(size_t count) {
  for (size_t index = 0; index < count; ++index) {
    threads_.emplace_back([this] { run(); });
    pthread_setname_np(threads_.back().native_handle(), "http");
  }
}

void ServingThreads::submit(AdmittedRequest request) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(request));
  }
  changed_.notify_one();
}

void ServingThreads::stop() {
  std::deque<AdmittedRequest> dropped;
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    std::swap(dropped, queue_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

bool ServingThreads::take(AdmittedRequest& request) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return is_stopping_ || !queue_.empty(); });
  if (is_stopping_) return false;
  request = std::move(queue_.front());
  queue_.pop_front();
  return true;
}

void ServingThreads::run() {
  HttplibWriter writer;
  AdmittedRequest request;
  while (take(request)) {
    request.exchange->serve(writer, options_);
    const bool keep_alive = request.exchange->keep_alive();
    // Before the notice: from then on the gate may drop the connection that the exchange refers to.
    request.exchange.reset();
    mailbox_.post({request.connection, Notice::Kind::kAnswered, keep_alive});
  }
}

}  // namespace lockstep
