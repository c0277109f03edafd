// When the tokens of an answer came, for the line that the log writes of it. Used by one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "server/api/common/generation_note.h"

namespace lockstep {

class GenerationClock {
 public:
  using Clock = std::chrono::steady_clock;

  // The submission of so many requests.
  void start(size_t requests, Clock::time_point now = Clock::now());
  // The request at `index` has so many tokens by now.
  void observe(size_t index, uint32_t generated, Clock::time_point now = Clock::now());
  // One of them has waited so long for its first pass; the shortest counts.
  void observe_queue(double seconds);

  // Sets the note's times, as far as they are known.
  void fill(GenerationNote& note) const;

 private:
  struct Tokens {
    uint32_t generated = 0;
    Clock::time_point first;  // when the first ones came
    uint32_t first_count = 0;
    Clock::time_point last;
  };

  Clock::time_point started_;
  std::vector<Tokens> requests_;
  std::optional<Clock::time_point> first_;
  std::optional<double> queue_seconds_;
};

}  // namespace lockstep
