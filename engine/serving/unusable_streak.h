// How many submissions in a row gave no usable numbers. Belongs to the engine's thread; the length
// is read by others.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/interface/request.h"

namespace lockstep {

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
