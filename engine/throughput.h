// How fast the engine has been of late, and what follows from it. Written by its thread, read by
// any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>

namespace lockstep {

class Throughput {
 public:
  // `pass_deadline`: how long a pass may take at most; none: as long as it does.
  explicit Throughput(std::optional<std::chrono::seconds> pass_deadline = {});

  void add_pass(size_t tokens, double seconds);
  void add_request(size_t generated_tokens);

  // 0 before the first pass.
  double tokens_per_second() const { return tokens_per_second_.load(std::memory_order_relaxed); }
  // Prompt tokens that one pass may compute so that the engine's thread is heard of every few
  // seconds, however slow the model is, and no pass comes near its deadline. The engine's thread
  // only.
  size_t prompt_tokens_most() const;
  // The same where others generate, so that their next tokens are not long in coming.
  size_t prompt_tokens_beside_streams() const;
  // Seconds after which half of such a queue will have been served: 1 to 60.
  int seconds_until_room(size_t requests, size_t prompt_tokens) const;

 private:
  size_t prompt_tokens_within(double seconds) const;

  const double prompt_pass_seconds_;
  // Sums that forget: the last dozen passes weigh the most.
  double tokens_ = 0;
  double seconds_ = 0;
  double prompt_tokens_per_second_ = 0;  // of passes of many tokens
  std::atomic<double> tokens_per_second_ = 0;
  std::atomic<double> generated_per_request_ = 0;
};

}  // namespace lockstep
