// The engine's outputs: on their way from its thread, added up, and in the words of the log and of
// OpenAI's answers.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/mutex.h"
#include "engine/engine.h"

namespace lockstep {

// The queue by which the engine's thread tells of several requests, to the one thread that answers
// them.
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
      const MutexLock lock(mutex_);
      if (break_ == Break::kNone) keep(Event{index, std::move(output)});
    }
    arrived_.notify_one();
  }

  // All that is there, in order; empty when nothing came for so long, or the queue is broken.
  std::vector<Event> wait(std::chrono::milliseconds timeout) {
    const auto deadline = ConditionVariable::deadline_in(timeout);
    const MutexLock lock(mutex_);
    while (events_.empty() && break_ == Break::kNone && arrived_.wait_until(mutex_, deadline)) {
    }
    bytes_ = 0;
    return std::exchange(events_, {});
  }

  Break broken() const {
    const MutexLock lock(mutex_);
    return break_;
  }

  // Called by the pushing thread when the queue breaks, at once if it has; an empty one takes back.
  // Must not use the queue.
  void on_break(std::function<void(Break)> callback) {
    const MutexLock lock(mutex_);
    on_break_ = std::move(callback);
    if (on_break_ && break_ != Break::kNone) on_break_(break_);
  }

 private:
  static size_t bytes_of(const Output& output) {
    size_t bytes = sizeof(Event) + output.text.size() + output.embedding.size() * sizeof(float) +
                   output.scores.size() * sizeof(float);
    for (const auto* tokens : {&output.prompt, &output.tokens}) {
      for (const OutputToken& token : *tokens) {
        bytes += sizeof(token) + token.bytes.size() + token.top.size() * sizeof(TokenLogprob);
      }
    }
    return bytes;
  }

  void keep(Event&& event) LOCKSTEP_REQUIRES(mutex_) {
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
  mutable Mutex mutex_;
  ConditionVariable arrived_;
  std::vector<Event> events_ LOCKSTEP_GUARDED_BY(mutex_);
  size_t bytes_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // of events_
  Break break_ LOCKSTEP_GUARDED_BY(mutex_) = Break::kNone;
  std::function<void(Break)> on_break_ LOCKSTEP_GUARDED_BY(mutex_);
};

// Adds a later output of the same request.
void append_output(Output& whole, Output&& next);

// "stop", "length", "cancelled" …
std::string_view finish_name(FinishReason reason);

// The name as JSON; null while a request goes on.
Json finish_reason(const Output& output);

}  // namespace lockstep
