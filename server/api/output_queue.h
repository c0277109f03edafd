// What the engine's thread says about several requests, for the one thread that answers them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace lockstep {

class OutputQueue {
 public:
  struct Event {
    size_t index = 0;  // of the request
    Output output;
  };

  // Never waits for the reader.
  void push(size_t index, Output&& output) {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(Event{index, std::move(output)});
    }
    arrived_.notify_one();
  }

  // All that is there, in order; empty when nothing came for so long.
  std::vector<Event> wait(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, timeout, [this] { return !events_.empty(); });
    return std::exchange(events_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Event> events_;  // guarded by mutex_
};

}  // namespace lockstep
