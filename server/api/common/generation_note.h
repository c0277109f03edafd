// The log's part of a request that generated, beside what HTTP knows of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct GenerationNote {
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;  // of them: taken from the prefix cache
  uint64_t generated_tokens = 0;
  std::string_view finish = {};                    // of its last choice
  std::optional<double> queue_seconds = {};        // until the engine took its first request up
  std::optional<double> first_token_seconds = {};  // from the submission to the first of any choice
  std::optional<double> per_token_seconds = {};    // mean, after the first of each choice
  std::string body = {};                           // of the HTTP request, where prompts are logged
};

// When the tokens of an answer came, for the line that the log writes of it. Used by one thread.
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
