// What the engine's thread says about several requests, for the one thread that answers them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <limits>
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
  // Why nothing more is taken.
  enum class Break {
    kNone,
    kFull,      // the reader lags behind by more than bytes_max
    kNoMemory,  // for an event
  };

  explicit OutputQueue(size_t bytes_max = std::numeric_limits<size_t>::max())
      : bytes_max_(bytes_max) {}

  // Never waits for the reader. An event that cannot be kept breaks the queue: that and all later
  // ones are dropped.
  void push(size_t index, Output&& output) {
    {
      const std::lock_guard lock(mutex_);
      if (break_ == Break::kNone) keep(Event{index, std::move(output)});
    }
    arrived_.notify_one();
  }

  // All that is there, in order; empty when nothing came for so long, or the queue is broken.
  std::vector<Event> wait(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, timeout, [this] { return !events_.empty() || break_ != Break::kNone; });
    bytes_ = 0;
    return std::exchange(events_, {});
  }

  Break broken() const {
    const std::lock_guard lock(mutex_);
    return break_;
  }

  // Called by the pushing thread when the queue breaks, at once if it has; an empty one takes back.
  // Must not use the queue.
  void on_break(std::function<void(Break)> callback) {
    const std::lock_guard lock(mutex_);
    on_break_ = std::move(callback);
    if (on_break_ && break_ != Break::kNone) on_break_(break_);
  }

 private:
  static size_t bytes_of(const Output& output) {
    size_t bytes = sizeof(Event) + output.text.size() + output.embedding.size() * sizeof(float);
    for (const auto* tokens : {&output.prompt, &output.tokens}) {
      for (const OutputToken& token : *tokens) {
        bytes += sizeof(token) + token.bytes.size() + token.top.size() * sizeof(TokenLogprob);
      }
    }
    return bytes;
  }

  // mutex_ is held.
  void keep(Event&& event) {
    try {
      bytes_ += bytes_of(event.output);
      if (bytes_ <= bytes_max_) {
        events_.push_back(std::move(event));
        return;
      }
      break_ = Break::kFull;
    } catch (const std::exception&) {
      break_ = Break::kNoMemory;
    }
    if (on_break_) on_break_(break_);
  }

  const size_t bytes_max_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Event> events_;  // these are guarded by mutex_
  size_t bytes_ = 0;           // of events_
  Break break_ = Break::kNone;
  std::function<void(Break)> on_break_;
};

}  // namespace lockstep
