#include "server/http/serving_threads.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include "engine/base/log.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kRest{5};  // a thread without work ends after this

}  // namespace

void ServingThreads::take_counts(size_t kept, size_t most) {
  kept_ = kept;
  most_ = std::max(kept, most);
  shares_.set_most(most_);
}

void ServingThreads::start(size_t kept, size_t most) {
  const MutexLock lock(mutex_);
  take_counts(kept, most);
  while (threads_.size() < kept_) add_thread();
}

// Those that rest end by themselves; where requests wait, threads come for them.
void ServingThreads::set_counts(size_t kept, size_t most) {
  const MutexLock lock(mutex_);
  take_counts(kept, most);
  find_thread();
}

// For one request that waits and may begin; the thread that takes it looks for another.
void ServingThreads::find_thread() {
  const auto may_go = [this](const std::string& client)
                          LOCKSTEP_REQUIRES(mutex_) { return shares_.may_begin(client); };
  if (!waiting_.any(may_go)) return;
  if (!resting_.empty()) {
    wake_one();
  } else if (threads_.size() < most_) {
    try_add_thread();
  }
}

void ServingThreads::end_request(const std::string& client) {
  const MutexLock lock(mutex_);
  shares_.end(client);
}

// False if the machine gives no thread.
bool ServingThreads::try_add_thread() {
  try {
    add_thread();
    return true;
  } catch (const std::exception& error) {
    spdlog::warn("No further thread for requests, {} serve: {}", threads_.size(), error.what());
    return false;
  }
}

// A thread rests.
void ServingThreads::wake_one() {
  Resting* thread = resting_.back();
  resting_.pop_back();
  thread->is_woken = true;
  thread->wake.notify_one();
}

// Throws if the machine gives no thread, or no memory for it.
void ServingThreads::add_thread() {
  resting_.reserve(threads_.size() + 1);  // so that a thread rests without asking for memory
  auto writer = std::make_unique<HttplibWriter>();
  const auto self = threads_.emplace(threads_.end());
  try {
    *self = std::thread([this, self, writer = std::move(writer)] { run(self, *writer); });
    pthread_setname_np(self->native_handle(), "http");
  } catch (...) {
    threads_.erase(self);
    throw;
  }
}

void ServingThreads::submit(AdmittedRequest request) {
  Threads ended;
  {
    const MutexLock lock(mutex_);
    const std::string client = request.client;
    shares_.add(client, request.site);
    try {
      waiting_.add(client, std::move(request));
    } catch (...) {
      shares_.drop(client);
      throw;
    }
    std::swap(ended, ended_);
    find_thread();
  }
  for (std::thread& thread : ended) thread.join();
}

void ServingThreads::stop() {
  Turns<AdmittedRequest> dropped;
  Threads threads;
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
    std::swap(dropped, waiting_);
    while (!resting_.empty()) wake_one();
    threads.splice(threads.end(), threads_);
    threads.splice(threads.end(), ended_);
  }
  for (std::thread& thread : threads) thread.join();
}

// Waits to be woken; false if that took too long.
bool ServingThreads::rest() {
  Resting self;
  resting_.push_back(&self);
  const auto deadline = ConditionVariable::deadline_in(kRest);
  while (!self.is_woken && self.wake.wait_until(mutex_, deadline)) {
  }
  if (self.is_woken) return true;
  std::erase(resting_, &self);
  return false;
}

bool ServingThreads::take(AdmittedRequest& request, Threads::iterator self) {
  MutexLock lock(mutex_);
  while (!is_stopping_) {
    if (threads_.size() > most_) {
      ended_.splice(ended_.end(), threads_, self);
      find_thread();  // it may have been woken for a request
      return false;
    }
    const auto may_go = [this](const std::string& client)
                            LOCKSTEP_REQUIRES(mutex_) { return shares_.may_begin(client); };
    if (auto next = waiting_.next_of(may_go)) {
      request = std::move(*next);
      shares_.begin(request.client);
      find_thread();
      return true;
    }
    if (rest()) continue;
    if (threads_.size() > kept_ && !is_stopping_ && !waiting_.any(may_go)) {
      ended_.splice(ended_.end(), threads_, self);
      return false;
    }
    lock.unlock();
    answer_memory_.give_back();  // clients may have taken long answers since
    lock.lock();
  }
  return false;
}

void ServingThreads::run(Threads::iterator self, HttplibWriter& writer) {
  AdmittedRequest request;
  while (take(request, self)) {
    request.exchange->serve(writer, options_);
    const auto notice =
        request.exchange->keep_alive() ? Notice::Kind::kAnswered : Notice::Kind::kLastAnswered;
    Outbox& outbox = request.exchange->outbox();
    // Before the notice: from then on the gate may drop the connection that the exchange refers to.
    const size_t body_bytes = request.exchange->body_bytes();
    request.exchange.reset();
    end_request(request.client);
    outbox.post(notice);
    answer_memory_.note_freed(body_bytes);
    answer_memory_.give_back();
  }
  answer_memory_.give_back();
}

}  // namespace lockstep
