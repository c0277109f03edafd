// The health of the engine's loop: what its thread is doing, and how many submissions in a row gave
// no usable numbers.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "engine/interface/request.h"
#include "engine/interface/statistics.h"

namespace lockstep {

enum class LoopPhase : uint8_t { kIdle, kScheduling, kDrafting, kComputing, kSampling, kTask };

// The activity of the engine's thread: written by it alone, read by anybody at any time, also when
// it does not go on. Every number is one relaxed atomic, so that what is read may be of two
// neighbouring passes.
class LoopActivity {
 public:
  // The thread goes on: the heartbeat.
  void enter(LoopPhase phase);
  void start_pass(uint64_t number, size_t sequences, size_t prompt_tokens, size_t generated_tokens);

  // The heartbeat's age and time. 0: there was none yet.
  void fill(EngineStatistics& statistics) const;
  double heartbeat_age_seconds() const;
  std::string describe() const;

 private:
  std::atomic<int64_t> heartbeat_ns_ = 0;  // steady clock; 0: none yet
  std::atomic<LoopPhase> phase_ = LoopPhase::kIdle;
  std::atomic<uint64_t> pass_ = 0;
  std::atomic<uint64_t> sequences_ = 0;
  std::atomic<uint64_t> prompt_tokens_ = 0;
  std::atomic<uint64_t> generated_tokens_ = 0;
};

// How many submissions in a row gave no usable numbers. Belongs to the engine's thread; the length
// is read by others.
class UnusableStreak {
 public:
  // `length`: where it is counted; outlives this.
  explicit UnusableStreak(std::atomic<uint64_t>& length) : length_(length) {}

  // A request of this submission gave no usable numbers. Choices of one prompt fail together: they
  // count once.
  void add(RequestId submission);
  // A request has ended; where it has ended well, so has the streak.
  void note_end(std::optional<FinishReason> reason);

 private:
  std::atomic<uint64_t>& length_;
  RequestId last_ = 0;  // submission that was added; none has the number 0
};

}  // namespace lockstep
