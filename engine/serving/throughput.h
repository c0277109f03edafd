// How fast the engine has been of late, and what follows from it. Written by its thread, read by
// any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>

#include "engine/scheduler/scheduler.h"

namespace lockstep {

// The tokens that a pass has computed.
struct PassTokens {
  size_t all = 0;
  size_t prompted = 0;     // of them
  double prompt_work = 0;  // of these (pass_cost.h)
};

PassTokens pass_tokens(const Schedule& schedule);

class Throughput {
 public:
  // `pass_deadline`: how long a pass may take at most, where all ranks are GPUs; none: as long as
  // it does.
  //
  // Where there is one, how long prompts take is learned from passes with prompted tokens alone,
  // and more is asked for only as far as what has been seen allows: n times the tokens, of n times
  // the work, take n times as long at most. A pass of few prompted tokens takes nearly as long as
  // one of hundreds there, which unpack the same weights. So beside streams a pass gets twice the
  // time that the shortest have taken: then at least half of it is the tokens' own.
  explicit Throughput(std::optional<std::chrono::seconds> pass_deadline = {});

  void add_pass(const PassTokens& pass, double seconds);
  void add_request(size_t generated_tokens);

  // 0 before the first pass.
  double tokens_per_second() const { return tokens_per_second_.load(std::memory_order_relaxed); }
  // The part of prompts that one pass may compute, so that the engine's thread is heard of every
  // few seconds, however slow the model is, and no pass comes near its deadline; and, where others
  // generate, so that their next tokens are not long in coming. The engine's thread only.
  PromptAllowance prompts_most() const;
  // Seconds after which half of such a queue will have been served: 1 to 60.
  int seconds_until_space(size_t requests, size_t prompt_tokens) const;

 private:
  // The sample of a pass: the last one that says something of passes that are as large.
  struct Sample {
    double amount = 0;
    double seconds = 0;

    void take(double of, double in);
    double within(double time) const { return seconds > 0 ? amount / seconds * time : 0; }
  };

  void add_prompted(const PassTokens& pass, double seconds);
  double mixed_pass_seconds() const;
  size_t tokens_within(double seconds) const;
  double work_within(double seconds) const;

  const bool has_deadline_;
  const double prompt_pass_seconds_;
  // Sums that forget: the last dozen passes weigh the most.
  double tokens_ = 0;
  double seconds_ = 0;
  Sample prompt_tokens_;      // of passes of many tokens
  Sample prompt_work_;        // where there is a deadline
  double shortest_pass_ = 0;  // of those with prompted tokens, there
  std::atomic<double> tokens_per_second_ = 0;
  std::atomic<double> generated_per_request_ = 0;
};

}  // namespace lockstep
